"""Tables of the pages: each function makes one in Markdown, from the results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from bench import archive_tables, far_tables, fused_tables, paper_tables, program_tables, replica_tables
from bench.catalogue import BENCHES
from bench.gains import gains
from bench.markdown import MISSING, Result, Results, middle, of_file, sources, spread, table

YES_NO = {True: "yes", False: "no", None: ""}


def benches(results: Results) -> str:
    """The catalogue."""
    rows = [
        (f"`{bench.name}`", bench.question, bench.bar, f"{bench.minutes:g}", f"`{bench.command()}`")
        for bench in BENCHES
    ]
    return table(("name", "question", "bar", "minutes", "command"), rows)


def stamps(results: Results) -> str:
    """When and on what each file was measured."""
    rows = []
    for result in results.all():
        machine, versions = result.stamp["machine"], result.stamp["versions"]
        software = " / ".join(versions[name] for name in ("python", "torch", "torchvision", "pillow"))
        rows.append((f"`{result.name}.json`", result.commit, machine["cpu"], str(machine["cores"]), software))
    return table(("file", "commit", "CPU", "cores", "Python / torch / torchvision / Pillow"), rows)


# --- over the link ----------------------------------------------------------------------------------------------------


def policies_of(bench: str) -> Callable[[Results], str]:
    """Epochs under each policy, a table per picture folder."""

    def tables(results: Results) -> str:
        parts = []
        for result in results.each(bench):
            title = f"**{result.data}**, {result.rows['epochs']} rounds"
            parts += [title, _policies_of(result), sources(result)]
        return "\n\n".join(parts) or MISSING

    return tables


def _policies_of(result: Result) -> str:
    columns = ("policy", "epoch s", "MB", "times faster", "times fewer bytes", "offloaded", "predicted / measured")
    rows = [
        (
            entry["policy"],
            spread(entry["seconds"], 2),
            middle(entry["interface_bytes"] or entry["payload_bytes"], 1, 1e6),
            spread(entry.get("times_faster"), 2),
            spread(entry.get("times_less_bytes"), 3),
            f"{entry['offloaded_share']:.0%}",
            middle(entry["predicted_to_measured"], 2),
            YES_NO[entry.get("same_batches")],
        )
        for entry in result.rows["summary"]
    ]
    return table((*columns, "same batches"), rows)


@of_file("cpu-bound")
def cpu_bound(result: Result) -> str:
    """Epochs without a limit on the wire."""
    rows = [
        (
            entry["policy"],
            spread(entry["images_per_s"], 0),
            spread(entry["times_faster"], 2),
            middle(entry["predicted_to_measured"], 2),
        )
        for entry in result.rows["summary"]
    ]
    columns = ("policy", "images/s", "times torch's", "predicted / measured")
    return table(columns, rows)


@of_file("link")
def link(result: Result) -> str:
    """Shares of a plain stream."""
    summary = result.rows["summary"]
    workers = sorted({entry["workers"] for entry in summary})
    lines = dict.fromkeys((entry["part"], entry["link_mbit"], entry["policy"]) for entry in summary)
    rows = []
    for part, link_mbit, policy in lines:
        cells = {
            entry["workers"]: spread(entry["ratio"], 3) + ("" if entry["verdict"] == "ok" else f", {entry['verdict']}")
            for entry in summary
            if (entry["part"], entry["link_mbit"], entry["policy"]) == (part, link_mbit, policy)
        }
        rows.append((part, f"{link_mbit:g}", policy, *(cells.get(number, "") for number in workers)))
    columns = ("samples", "link, Mbit/s", "policy", *(f"{number} worker{'s' * (number > 1)}" for number in workers))
    return table(columns, rows)


def live(results: Results) -> str:
    """First epochs, ranks, and what follows a change, a table per picture folder."""
    parts = []
    for result in results.each("live"):
        cases = result.rows["cases"]
        parts.append(f"**{result.data}**")
        if starts := _starts_of(cases):
            parts.append(table(("what", "figure"), starts))
        changes = [(name, one) for name, case in cases.items() for one in case.get("changes", ())]
        if changes:
            columns = (
                "case",
                "changed to",
                "images/s",
                "of a fresh loader's",
                "in the first 10 s",
                "least, of no-off's",
                "no-off's own least",
            )
            parts.append(table((*columns, "said to limit"), [_change(name, one) for name, one in changes]))
        parts += [f"`{name}` was left out: {reason}." for name, reason in result.rows["left_out"].items()]
        parts.append(sources(result))
    return "\n\n".join(parts) or MISSING


def _starts_of(cases: dict[str, Any]) -> list[Sequence[str]]:
    rows: list[Sequence[str]] = []
    if first := cases.get("first-epoch"):
        batches = " / ".join(spread(first["first_batch_s"][policy], 2) for policy in ("auto", "no-off"))
        rows += [("first epoch, times a steady one", spread(first["ratio"], 3))]
        rows += [("first batch of `auto` / of `no-off`, s", batches)]
    if rank := cases.get("rank"):
        ratios = ", ".join(spread(ratio, 2) for ratio in rank["ratios"])
        rows.append(("epochs of rank 0 of 8, times a single rank's images/s", ratios))
    return rows


def _change(name: str, one: dict[str, Any]) -> Sequence[str]:
    if "failed" in one:
        return (name, one["to"], f"failed: {one['failed']}", "", "", "", "", "")
    ratios = ("ratio", "at_once", "least_by_no_off", "no_off_least")
    figures = (f"{one['images_per_s']:.0f}", *(f"{one[key]:.2f}" for key in ratios))
    return (name, one["to"], *figures, str(one["bottleneck"]))


@of_file("steadiness")
def steadiness(result: Result) -> str:
    """Deviation, verdicts, memory, and the start of a local agent."""
    cases, rows = result.rows["cases"], []
    for policy, one in cases.get("steady", {}).get("policies", {}).items():
        what = f"`{policy}`: standard deviation of windows of 5 s, by their mean of {one['median']:.0f} images/s"
        rows.append((what, f"{one['deviation']:.1%} of {one['windows']}"))
    if idle := cases.get("idle-wire"):
        what = f"crops of next to nothing, 5 Mbit/s, {idle['images_per_s']:.0f} images/s: least window by their median"
        rows.append((what, f"{idle['least']:.2f}"))
    if verdict := cases.get("verdict"):
        by_resource = ", ".join(f"{name} {right}" for name, right in verdict["by_resource"].items())
        rows.append(("verdicts that are right", f"{verdict['right']} of {verdict['decided']} ({by_resource})"))
        for one in verdict["would_bring"].get("rows", ()):
            what = f"{one['conditions']}: twice of {one['more']} would bring / brings, times the images/s"
            rows.append((what, f"{one['said']:.2f} / {one['measured']:.2f}"))
    for dataset, kinds in cases.get("memory", {}).get("beyond_index", {}).items():
        told = ", ".join(f"`{kind}` {nbytes:.2f}" for kind, nbytes in kinds.items() if nbytes is not None)
        rows.append((f"bytes per sample beyond the index, {dataset}", told))
    if local := cases.get("local"):
        later = f"{local['first_batch_s_later']:+.2f} s / {local['first_epoch_s_later']:+.2f} s"
        rows.append(('`agent="local"`, first batch / first epoch, later than torch\'s DataLoader', later))
    return table(("what", "figure"), rows)


def latency(result: Result) -> str:
    """Images per second by round trip, and memory where it was measured."""
    before = {"workers": 1, **result.rows["settings"]}  # in files of one batch size and one number ahead
    summary = [before | ({} if "choices" in one else {"prefetch": ""}) | one for one in result.rows["summary"]]
    round_trips = sorted({entry["round_trip_ms"] for entry in summary})
    about = ("part", "link_mbit", "batch_size", "workers", "system", "prefetch")
    lines: dict[tuple[Any, ...], dict[float, Any]] = {}
    for entry in summary:
        lines.setdefault(tuple(entry[name] for name in about), {})[entry["round_trip_ms"]] = entry
    weighed = [name for name in MEMORY if any(name in entry for entry in summary)]
    rows = []
    for (part, link_mbit, *rest), found in lines.items():
        cells = [middle(found[0.0]["images_per_s"], 0)]
        cells += [spread(found[one]["ratio"], 3) if one in found else "" for one in round_trips if one]
        cells += [middle(found[0.0][name], 0) if name in found[0.0] else "" for name in weighed]
        rows.append((part, f"{link_mbit:g}", *map(str, rest), *cells))
    shape = ("samples", "link, Mbit/s", "batches of", "workers", "system", "prefetch_factor", "images/s at 0 ms")
    columns = (*shape, *(f"{one:g} ms" for one in round_trips if one), *(MEMORY[name] for name in weighed))
    missing = [f"{name}: not available: {reason}." for name, reason in result.rows["unavailable"].items()]
    return "\n\n".join([table(columns, rows), *missing])


def other_torch(result: Result) -> str:
    """An agent with another torch beside one alike, by policy and round trip."""
    rows = [
        (
            f"`{entry['policy']}`",
            f"{entry['round_trip_ms']:g}",
            middle(entry["alike_images_per_s"], 0),
            middle(entry["other_images_per_s"], 0),
            spread(entry["rate_ratio"], 3),
            spread(entry["bytes_ratio"], 3),
            spread(entry["first_batch_later_s"], 2),
        )
        for entry in result.rows["summary"]
    ]
    shape = ("policy", "round trip, ms", "the same torch, images/s", "another, images/s", "ratio", "bytes, ratio")
    return table((*shape, "first batch, s later"), rows)


def any_class_agent(result: Result) -> str:
    """Datasets of user-defined classes with an agent: images per second and bytes of `auto` and `no-off`."""
    rows = [
        (
            row["shape"],
            middle(row["images_per_s"]["no-off"], 0),
            middle(row["images_per_s"]["auto"], 0),
            spread(row["rate_ratio"], 2),
            spread(row["bytes_ratio"], 2),
            f"{row['bytes_of_least']:.2f}",
        )
        for row in result.rows["rows"]
    ]
    columns = ("a sample", "`no-off`, images/s", "`auto`, images/s", "ratio", "bytes, ratio", "bytes, of the least")
    return table(columns, rows)


def light_agent(result: Result) -> str:
    """Time to start, memory and disk of an agent, by the extras that are installed."""
    rows = [
        (
            f"`{entry['extras']}`",
            f"{entry['disk_mb']:.0f}",
            spread(entry["serves_s"], 2),
            spread(entry["first_answer_s"], 2),
            spread(entry["cpu_s"], 2),
            middle(entry["worker_pss_mb"], 0),
            middle(entry["all_pss_mb"], 0),
            entry["verdict"],
        )
        for entry in result.rows["summary"]
    ]
    columns = ("extras", "disk, MB", "listens, s", "a worker's first answer, s", "CPU s until then")
    return table((*columns, "a worker, MB", "all processes, MB", "bars"), rows)


MEMORY = {"pss_mb": "PSS, MB", "private_mb": "private, MB", "shm_mb": "/dev/shm, MB"}
"""Memory of a loader's processes at 0 ms, peak -> label."""


def overhead(results: Results) -> str:
    """Images per second as a ratio to torch's."""
    result = results.named("overhead")
    if result is None or "throughput" not in result.rows:
        return MISSING
    entries = result.rows["throughput"]
    workers = sorted({entry["workers"] for entry in entries})
    lines = dict.fromkeys((entry["policy"], entry["limit"]) for entry in entries)
    rows = []
    for policy, limit in lines:
        cells = {entry["workers"]: entry for entry in entries if (entry["policy"], entry["limit"]) == (policy, limit)}
        rows.append((policy, limit, *(spread(cells[number]["ratio"], 3) for number in workers)))
    columns = ("policy", "limited by", *(f"{number} worker{'s' * (number > 1)}" for number in workers))
    return f"{table(columns, rows)}\n\n{sources(result)}"


def start_and_growth(results: Results) -> str:
    """First batch, constructor, memory."""
    rows, used = [], []
    if (result := results.named("overhead")) is not None:
        used.append(result)
        if first := result.rows.get("first-batch"):
            text = f"{first['later_s']:.3f} s later ({middle(first['ours'], 3)} s, torch {middle(first['torch'], 3)} s)"
            rows.append(("first batch after the constructor, agent running, against torch's", text))
        if memory := result.rows.get("memory"):
            ours, torchs = memory["ours"]["grown_mb"], memory["torch"]["grown_mb"]
            for who in ("main", "worker"):
                what = f"private memory, {who} process: growth over 20 epochs, ours / torch's"
                rows.append((what, f"{ours[who]:+.1f} / {torchs[who]:+.1f} MB"))
    if (result := results.named("constructor")) is not None:
        used.append(result)
        found = result.rows["constructor"]
        what = "ImageFolder's and our constructor with 1.28 million samples, by ImageFolder's"
        rows.append((what, spread(found["ratio"], 3)))
        rows.append(("our constructor", f"{spread(found['ours_s'], 2)} s"))
        rows.append(("the first `iter()`", f"{spread(found['iter_s'], 2)} s"))
    return f"{table(('what', 'figure'), rows)}\n\n{sources(*used)}" if rows else MISSING


@of_file("hotpath")
def hotpath(result: Result) -> str:
    """Microseconds of CPU per sample."""
    lines = {
        "loader, collating and moving batches of floats included": "loader_us",
        "of that beyond torch": "beyond_torch_us",
        "of that I/O threads": "worker_io_us",
        "agent": "agent_us",
        "of that its I/O threads": "agent_io_us",
    }
    summary = result.rows["summary"]
    rows = [(what, *(spread(entry.get(name), 0) for entry in summary)) for what, name in lines.items()]
    columns = ("microseconds per sample", *(entry["policy"] for entry in summary))
    return table(columns, rows)


@of_file("training")
def training(result: Result) -> str:
    """A real GPU."""
    rows = [
        (
            case["model"],
            f"{case['link_mbit']:g} Mbit/s" if case["link_mbit"] else "none",
            policy,
            spread(one["images_s"], 0),
            spread(one["ratio"], 2),
            f"{one['busy']['median']:.0%} of {case['alone']:.0f}",
        )
        for case in result.rows["cases"]
        for policy, one in case["summary"].items()
    ]
    columns = ("network", "limit of the wire", "loader", "images/s", "times the first", "of what the GPU can take")
    return f"**{result.rows['settings']['device']}**\n\n{table(columns, rows)}"


@of_file("tail")
def tail(result: Result) -> str:
    """The last ops on the device."""
    rows = [
        (
            str(entry["workers"]),
            entry["device"],
            spread(entry["summary"]["ratio"], 3),
            f"{entry['bytes_per_image']['device']:.0f} / {entry['bytes_per_image']['loader']:.0f}",
        )
        for entry in result.rows
    ]
    columns = ("workers", "device", 'images/s, times those of `tail="loader"`', "bytes per image, by queue")
    return table(columns, rows)


@of_file("workers")
def workers(result: Result) -> str:
    """Return a table of `num_workers="auto"` next to fixed numbers."""
    *names, last = result.rows[0]["summary"]
    rows = [
        (job["job"], *(spread(job["summary"][name], 0) for name in names), spread(job["summary"][last], 3))
        for job in result.rows
    ]
    columns = ("job", *(f"images/s, {name}" for name in names), "auto / best fixed number")
    return table(columns, rows)


@of_file("agent")
def agent(result: Result) -> str:
    """An agent and a loader worker by themselves."""
    summary, memory = result.rows["summary"], result.rows["memory"]
    cpu = (middle(summary[f"{who}_cpu_s_per_gb"], 2) for who in ("agent", "client"))
    rows = [
        ("`file` replies over loopback, one client", f"{spread(summary['mb_s'], 0)} MB/s"),
        ("CPU seconds per GB, agent / client", " / ".join(cpu)),
        (
            "memory of a loader worker (PSS), ours / torch's",
            f"{memory['ours_mb']:.0f} / {memory['torch_mb']:.0f} MB = {memory['ratio']:.2f}",
        ),
    ]
    return table(("what", "figure"), rows)


@of_file("fairness")
def fairness(result: Result) -> str:
    """Return a table of many clients of one agent, and of one next to each attacker."""
    found = result.rows
    rows = [
        (f"the slowest of {len(found['shares'])} clients, of the fair share", f"{found['slowest']:.2f}"),
        ("the agent's processes meanwhile, at most", f"{found['agent_mb']:.0f} MB"),
        *((f"a client beside {name}, of its rate alone", f"{kept:.2f}") for name, kept in found["kept"].items()),
    ]
    return table(("what", "figure"), rows)


@of_file("faults")
def faults(result: Result) -> str:
    """Seconds that an epoch lasts longer with each fault, and whether its samples are the same."""
    rows = []
    for one in result.rows["summary"]:
        low, middling, high = (f"{one['lost_s'][name]:+.2f}" for name in ("min", "median", "max"))
        rows.append((one["kind"], YES_NO[one["same"]], f"{middling} ({low} to {high})"))
    return table(("fault", "same samples", "seconds lost"), rows)


def costs(results: Results) -> str:
    """Profiling, planning and cutting."""
    rows: list[Sequence[str]] = []
    used = []
    if (result := results.named("profiling")) is not None:
        used.append(result)
        what = "first epoch of `sophon` with profiling, times `no-off`'s without"
        rows.append((what, spread(result.rows["summary"]["sophon_ratio"], 3)))
    if (result := results.named("planner")) is not None:
        used.append(result)
        found = [one for one in result.rows["results"] if one["job"] != "making"]
        for policy, what in (("sophon", "a plan of `sophon` for {} samples"), ("auto", "prices of `auto` from {}")):
            slowest = max((one for one in found if one["policy"] == policy), key=lambda one: one["seconds_worst"])
            rows.append((f"{what.format(slowest['samples'])}, slowest", f"{1000 * slowest['seconds_worst']:.0f} ms"))
        most = max(one["bytes_per_sample"] for one in found if one["policy"] != "auto")
        rows.append(("memory of a plan, at most", f"{most:.0f} bytes/sample"))
        for made in result.rows["results"]:
            if made["job"] == "making":
                text = f"{made['seconds_worst']:.1f} s, {made['bytes_per_sample']:.0f} bytes/sample"
                what = "a plan of `sophon` with the making of its table, beyond the profile, slowest and at the peak"
                rows.append((what, text))
    if (result := results.named("jpegcrop")) is not None:
        used.append(result)
        crop, totals = result.rows[0], result.rows[-1]
        rows.append(("cutting a JPEG's bitstream, of a full decoding by Pillow", spread(crop["ratio"], 3)))
        rows.append(("bytes of the part, of the file's", f"{totals['bytes_ratio']:.3f}"))
    return f"{table(('what', 'figure'), rows)}\n\n{sources(*used)}" if rows else MISSING


# --- encodings and peers ----------------------------------------------------------------------------------------------


def encodings(results: Results) -> str:
    """Return tables of encodings' sizes and costs, and of the savings of sets of them."""
    found = results.each("encodings")
    if not found:
        return MISSING
    by_name: dict[str, list[str]] = {}
    by_set: dict[str, list[str]] = {}
    for result in found:
        for entry in result.rows["encodings"]:
            figures = (f"{entry['bytes']:.0f}", f"{entry['encode_ms']:.2f}", f"{entry['decode_ms']:.2f}")
            by_name.setdefault(entry["encoding"], []).extend(figures)
        for chosen, ratio in result.rows["times_fewer_bytes"].items():
            by_set.setdefault(chosen, []).append(f"{ratio:.2f}")
    columns = [f"{result.data}: {what}" for result in found for what in ("bytes", "encode ms", "decode ms")]
    weights = table(("encoding", *columns), [(name, *cells) for name, cells in by_name.items()])
    savings = table(("choices", *(result.data for result in found)), [(name, *cells) for name, cells in by_set.items()])
    return f"{weights}\n\nTimes fewer bytes than the files:\n\n{savings}\n\n{sources(*found)}"


def study(results: Results) -> str:
    """Sizes through the stages, who shrinks, and what that is worth."""
    found = results.each("study")
    if not found:
        return MISSING
    rows = []
    for what in ("mean_bytes", "smallest_at"):
        for stage in found[0].rows["mean_bytes"]:
            values = [result.rows[what].get(stage, 0) for result in found]
            cells = [f"{value / 1000:.1f}" if what == "mean_bytes" else str(value) for value in values]
            rows.append((f"mean KB behind {stage}" if what == "mean_bytes" else f"samples smallest at {stage}", *cells))
    rows = [row for row in rows if set(row[1:]) != {"0"}]
    rows.append(("**samples that shrink**", *(f"{result.rows['shrinking_share']:.1%}" for result in found)))
    fewer = (f"{result.rows['times_fewer_bytes']:.3f}" for result in found)
    rows.append(("times fewer bytes, each at its smallest stage", *fewer))
    for share in found[0].rows["efficiency_bytes_per_cpu_s"]:
        values = [result.rows["efficiency_bytes_per_cpu_s"].get(share, 0.0) for result in found]
        what = f"offloading efficiency, MB saved per CPU second: {share} of the shrinking samples are below"
        rows.append((what, *(f"{value / 1e6:.1f}" for value in values)))
    return f"{table(('what', *(result.data for result in found)), rows)}\n\n{sources(*found)}"


def peers(results: Results) -> str:
    """The best peer on each picture folder."""
    found = results.each("peers")
    rows = []
    for result in found:
        best = result.rows["bar"]
        if best is not None:
            rows.append((result.data, best["best_peer"], f"{best['times_faster']:.2f}"))
    return f"{table(('data', 'best peer', 'auto, times its images/s'), rows)}\n\n{sources(*found)}" if rows else MISSING


def peers_on(result: Result) -> str:
    """All systems on one picture folder."""
    summary = result.rows["summary"]
    rates = {entry["system"]: entry["images_per_s"] for entry in summary}
    ours = "auto" if "auto" in rates else "auto-bucket"
    rows = [_peer(entry, rates.get(ours)) for entry in summary if entry["images_per_s"]]
    columns = ("system", "images/s", "kB/image", "server ms", "loader ms", "first batch s", "same batches", "order")
    missing = [
        f"{entry['system']}: not available: {entry['unavailable']}." for entry in summary if entry["unavailable"]
    ]
    return "\n\n".join([table((*columns, f"{ours}, times faster"), rows), *missing])


def _peer(entry: dict[str, Any], auto: dict[str, float] | None) -> Sequence[str]:
    return (
        entry["system"],
        spread(entry["images_per_s"], 1),
        middle(entry["bytes_per_image"], 1, 1e3),
        middle(entry["server_cpu_s_per_image"], 2, 1e-3),
        middle(entry["loader_cpu_s_per_image"], 2, 1e-3),
        f"{entry['first_batch_s']:.2f}" if "first_batch_s" in entry else "",
        YES_NO[entry["same_batches"]],
        YES_NO[entry["same_order"]],
        "" if auto is None else f"{auto['median'] / entry['images_per_s']['median']:.2f}",
    )


def peers_versions(results: Results) -> str:
    """Return a table of the versions installed for each peer."""
    found: dict[str, set[str]] = {}
    for result in [*results.each("peers"), *results.each("peers-bucket")]:
        for versions in result.rows["versions"].values():
            for name, version in versions.items():
                found.setdefault(name, set()).add(version)
    if not found:
        return MISSING
    return ", ".join(f"{name} {' or '.join(sorted(found[name]))}" for name in sorted(found)) + "."


TABLES: dict[str, Callable[[Results], str]] = {
    "gains": gains,
    "benches": benches,
    "stamps": stamps,
    "policies": policies_of("policies"),
    "long-epochs": policies_of("long-epochs"),
    "fewer-cores": paper_tables.fewer_cores,
    "utilisation": paper_tables.utilisation,
    "fastflow": paper_tables.fastflow,
    "overlap": paper_tables.overlap,
    "workers": workers,
    "cpu-bound": cpu_bound,
    "link": link,
    "live": live,
    "steadiness": steadiness,
    "latency": of_file("latency")(latency),
    "other-torch": of_file("other-torch")(other_torch),
    "single-pictures": of_file("single-pictures")(any_class_agent),
    "light-agent": of_file("light-agent")(light_agent),
    "look-ahead": of_file("look-ahead")(latency),
    "look-ahead-large": of_file("look-ahead-large")(latency),
    "overhead": overhead,
    "start-and-growth": start_and_growth,
    "hotpath": hotpath,
    "tail": tail,
    "training": training,
    "faults": faults,
    "fairness": fairness,
    "agent": agent,
    "archives": archive_tables.archives,
    "archive-index": archive_tables.archive_index,
    "buckets": far_tables.buckets,
    "bucket-streams": far_tables.streams,
    "cache": far_tables.cache,
    "replicas": replica_tables.replicas,
    "replicas-workers": replica_tables.workers,
    "fleet": replica_tables.fleet,
    "costs": costs,
    "encodings": encodings,
    "study": study,
    "study-detection": paper_tables.study_detection,
    "peers": peers,
    "peers-imagenet": of_file("peers-imagenet")(peers_on),
    "peers-photos": of_file("peers-photos")(peers_on),
    "peers-bucket-imagenet": of_file("peers-bucket-imagenet")(peers_on),
    "peers-bucket-photos": of_file("peers-bucket-photos")(peers_on),
    "peers-versions": peers_versions,
    "fused": fused_tables.fused,
    "any-class": fused_tables.any_class,
    "any-class-recording": fused_tables.any_class_recording,
    "any-class-memory": fused_tables.any_class_memory,
    "cost": fused_tables.cost,
    "cost-stages": fused_tables.cost_stages,
    "programs": program_tables.programs,
    "programs-ended": program_tables.programs_ended,
    "recorded-torchvision": program_tables.ops_of("v1", "v2"),
    "recorded-timm": program_tables.ops_of("timm", "torch.nn"),
    "looks": program_tables.looks,
    "not-registered": program_tables.not_registered,
}
