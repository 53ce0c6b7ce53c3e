"""For Spark programs to import: the op log as a data source. Needs the extra `spark`."""

from headwater.pipeline.oplog.source import OplogSource

__all__ = ["OplogSource"]
