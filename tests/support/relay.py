"""The relay that spoils connections, where tests look for helpers; benches use it, too."""

from bench.bed.spoilt import SpoiltRelay, Strike

__all__ = ["SpoiltRelay", "Strike"]
