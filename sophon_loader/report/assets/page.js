// Draws the curves of a run's page. What the page says, it says without this.
(() => {
  "use strict";
  const course = JSON.parse(document.getElementById("course").textContent);
  const places = [...document.querySelectorAll(".plot")];
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const DASHES = [[], [8, 5], [2, 4], [12, 4, 2, 4], [5, 2], [2, 2, 8, 2]];
  const LIGHT = ["#0b62b8", "#a3340b", "#3b7d23", "#7a3fa0", "#8a6d00", "#59616b"];
  const DARK = ["#62aef7", "#ff9a70", "#8fd16f", "#cf9cf0", "#e6c34a", "#a3acb6"];
  const sync = uPlot.sync("run");
  let plots = [], printing = false;

  const told = (value) => value == null ? "–" : Number(value.toPrecision(3)).toLocaleString("en");
  const clock = (seconds) => {
    if (seconds < 600) return `${Math.round(10 * seconds) / 10} s`;
    if (seconds < 7200) return `${Math.round(seconds / 6) / 10} min`;
    return `${Math.round(seconds / 360) / 10} h`;
  };

  const marks = (ink, warn) => (plot) => {
    const { ctx, bbox } = plot, ratio = devicePixelRatio;
    ctx.save();
    ctx.font = `${11 * ratio}px sans-serif`;
    ctx.textAlign = "left";  // the axes leave their own
    ctx.textBaseline = "alphabetic";
    ctx.fillStyle = ctx.strokeStyle = ink;
    ctx.setLineDash([2 * ratio, 3 * ratio]);
    let free = -Infinity;
    for (const [at, name] of course.begins) {
      const x = plot.valToPos(at, "x", true);
      if (x < bbox.left - 1 || x > bbox.left + bbox.width) continue;
      ctx.beginPath(); ctx.moveTo(x, bbox.top); ctx.lineTo(x, bbox.top + bbox.height); ctx.stroke();
      const width = ctx.measureText(name).width;
      if (x > free && x + width < bbox.left + bbox.width) {
        ctx.fillText(name, x + 3 * ratio, bbox.top - 4 * ratio);
        free = x + width + 10 * ratio;
      }
    }
    ctx.fillStyle = warn;
    for (const [at] of course.marks) {
      const x = plot.valToPos(at, "x", true), size = 5 * ratio;
      if (x < bbox.left || x > bbox.left + bbox.width) continue;
      ctx.beginPath(); ctx.moveTo(x - size, bbox.top); ctx.lineTo(x + size, bbox.top);
      ctx.lineTo(x, bbox.top + 1.6 * size); ctx.fill();
    }
    ctx.restore();
  };

  const draw = () => {
    for (const plot of plots) plot.destroy();
    const isDark = dark.matches && !printing;
    const colours = isDark ? DARK : LIGHT, ink = isDark ? "#a3acb6" : "#59616b", grid = isDark ? "#2c333a" : "#e4e7eb";
    const axis = { stroke: ink, grid: { stroke: grid, width: 1 }, ticks: { stroke: grid, width: 1 }, font: "12px sans-serif" };
    plots = course.plots.map((one, place) => new uPlot({
      width: width(places[place]), height: 210,
      padding: [16, 8, 0, 0],
      legend: { markers: { width: 3, dash: (_, number) => ["solid", "dashed", "dotted"][(number - 1) % 3] } },
      cursor: { sync: { key: sync.key }, drag: { x: true, y: false } },
      scales: { x: { time: false }, y: { range: (_, least, most) => [0, one.most || Math.max(1e-9, 1.05 * most)] } },
      axes: [
        { ...axis, space: 70, values: (_, splits) => splits.map(clock) },
        { ...axis, size: 56, values: (_, splits) => splits.map(told) },
      ],
      series: [
        { label: "time", value: (_, value) => value == null ? "–" : clock(value) },
        ...one.series.map((series, number) => ({
          label: series.name, stroke: colours[number], width: 2, dash: DASHES[number], spanGaps: true,
          points: { show: course.x.length < 3 }, value: (_, value) => told(value),
        })),
      ],
      hooks: { draw: [marks(ink, isDark ? "#ff9a70" : "#a3340b")] },
    }, [course.x, ...one.series.map((series) => series.values)], places[place]));
  };

  // Paper is narrower than most screens, and its width is not known before it is printed.
  const width = (place) => printing ? 640 : Math.max(240, place.clientWidth);
  const fit = () => plots.forEach((plot, number) => plot.setSize({ width: width(places[number]), height: 210 }));
  const print = (now) => { printing = now; draw(); };
  let waiting = 0;
  draw();
  addEventListener("resize", () => { cancelAnimationFrame(waiting); waiting = requestAnimationFrame(fit); });
  addEventListener("beforeprint", () => print(true));
  addEventListener("afterprint", () => print(false));
  dark.addEventListener("change", draw);
})();
