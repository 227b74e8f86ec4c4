"""What clients have been sent and not taken, by what the kernel says."""

from __future__ import annotations

from storage_agent.clients.unread_replies import READS_NBYTES_PER_S, STALLED_S, UnreadReplies


def test_what_is_acknowledged_is_unread_no_longer() -> None:
    handed = UnreadReplies(most=4)
    handed.put(b"a", 1000)
    handed.put(b"b", 500)
    assert handed.nbytes == 1500
    handed.acknowledged(b"a", 300)
    assert (handed.nbytes_of(b"a"), handed.nbytes) == (700, 1200)
    handed.acknowledged(b"a", 1040)
    assert handed.nbytes_of(b"a") == 0, "40 bytes of a handshake"
    handed.put(b"a", 100)
    handed.acknowledged(b"a", 1040)
    assert handed.nbytes_of(b"a") == 100, "they are known from now on"
    handed.drop(b"a")
    handed.taken(b"b")
    assert (handed.nbytes, handed.clients) == (0, [])
    handed.acknowledged(b"gone", 5)
    handed.taken(b"gone")
    handed.drop(b"gone")
    assert handed.nbytes_of(b"gone") == 0


def test_no_more_than_the_latest_replies_can_be_unread() -> None:
    """Where the kernel does not tell, as of a Unix socket."""
    handed = UnreadReplies(most=4)
    for _ in range(10):
        handed.put(b"a", 100)
    assert handed.nbytes == 400


def test_who_does_not_read_while_too_much_is_unread() -> None:
    handed, acknowledged = UnreadReplies(most=4), {b"reads": 0, b"trickles": 0, b"deaf": 0}
    for n, client in enumerate(acknowledged):
        handed.put(client, (n + 1) << 20)
    found = {}
    for now_s in (0.0, STALLED_S / 2, STALLED_S):
        acknowledged[b"reads"] += int(READS_NBYTES_PER_S * STALLED_S / 2)
        acknowledged[b"trickles"] += int(READS_NBYTES_PER_S * STALLED_S / 4)
        for client, nbytes in acknowledged.items():
            handed.acknowledged(client, nbytes)
        found[now_s] = handed.not_reading(now_s)
    assert found == {0.0: [], STALLED_S / 2: [], STALLED_S: [b"deaf", b"trickles"]}
    handed.taken(b"deaf")
    assert handed.not_reading(STALLED_S) == [b"trickles"]
