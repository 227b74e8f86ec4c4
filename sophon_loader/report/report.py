"""The report of an epoch, for people and for programs."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from sophon_loader.host.terminal import table
from sophon_loader.report.page import PlainReport, page_of
from sophon_loader.report.rows import rows_of, title
from sophon_loader.report.scalars import scalars_of
from sophon_loader.report.values import ReportValues


@dataclass(frozen=True, repr=False)
class Report(ReportValues):
    """The last epoch of a loader, or the running one so far; a report does not change later. `ReportValues` lists its
    values.

    Example:
        >>> print(loader.report())  # a table
        >>> loader.report().as_dict()["wire_bytes"]
        >>> loader.report().save("run.html")  # a page
    """

    def __str__(self) -> str:
        return table(title(self), rows_of(self))

    __repr__ = __str__

    def scalars(self) -> dict[str, float]:
        """Name -> number, flat, for a logger such as TensorBoard, W&B or MLflow; docs/metrics.md lists the names.

        Example:
            >>> for name, value in loader.report().scalars().items():
            ...     writer.add_scalar(f"loader/{name}", value, step)
        """
        return scalars_of(self)

    def told(self) -> PlainReport:
        """Title, table and values as plain data."""
        return PlainReport(title(self), rows_of(self), self.as_dict())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the report as a page for a browser: one HTML file without other files or network.

        Args:
            path: of the file, for example `"run.html"`; an existing file is replaced.

        Raises:
            OSError: the file cannot be written.
        """
        Path(path).write_text(page_of(self.told()), encoding="utf-8", errors="backslashreplace")
