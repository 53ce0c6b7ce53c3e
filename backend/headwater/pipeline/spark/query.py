"""The result of a query that Spark runs, as rows of Postgres: a computed table over files and lakes.

The query runs in a session of its own, which starts from the settings in `spark.conf`, with UTC as its time zone. Its
rows are written down on executors once, so that all of them are of one run, and each becomes a line of COPY text there:
the same as Postgres would write for the same values. A query that reads nothing but files has a version: these files,
with their sizes and times.
"""

from __future__ import annotations

import hashlib
import logging
import re
import threading
import uuid
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress

from py4j.java_gateway import JavaObject
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkContext, StorageLevel
from pyspark.errors import PySparkException
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame, SparkSession, types
from pyspark.sql import functions as f

from headwater.bulk.contract import GivenUpError
from headwater.decode.types import Oid
from headwater.errors import HeadwaterError
from headwater.oplog.change import Column, Relation, ReplicaIdentity
from headwater.oplog.lsn import Lsn
from headwater.pipeline.spark.job_group import job_group, lost
from headwater.pipeline.spark.session import Spark
from headwater.source.rows.query import ComputedTableError, Described, check_names, fault
from headwater_rules.plan import COMPUTED, ComputedTable

# They write errors to stderr, with values of rows. Made before PySpark makes them of a class of its own, which gives
# each handler that is added to them another format
for _name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
    logging.getLogger(_name).disabled = True


class SparkResult:
    """See `ComputedResult`. Raises EngineError and GivenUpError, too."""

    def __init__(self, spark: Spark, pool: str | None, table: ComputedTable, stop: threading.Event) -> None:
        self._spark = spark
        self._pool = pool
        self._table = table
        self._stop = stop
        self._group = f"headwater query {uuid.uuid4()}"
        self._late = False
        self._held = ExitStack()
        self._context: SparkContext
        self._rows: DataFrame
        self.seen = Lsn(0)
        self.version = ""

    def open(self, wait_for: Collection[int] = ()) -> Described:
        """Nothing of the source is waited for, whose commits Spark does not see."""
        if not self._spark.runs_queries:
            what = "Spark may not run queries of sync configs"
            fix = "set `spark.queries: true` in the service config, if whoever deploys may do all that Spark can"
            raise fault(self._table, what, fix, "HW_2708")
        with self._errors():
            self._context = self._held.enter_context(self._spark.used())
            timer = threading.Timer(self._table.refresh.timeout, self._time_out)
            timer.daemon = True
            timer.start()
            self._held.callback(timer.cancel)
            session = self._spark.session().newSession()  # which has listed no files yet
            session.conf.set("spark.sql.session.timeZone", "UTC")
            with self._job():
                return self._described(session)

    def _described(self, session: SparkSession) -> Described:
        query = self._table.query
        session._jsparkSession.sessionState().sqlParser().parseQuery(query)  # refuses what does more than read
        rows = session.sql(query)
        fields = rows.schema.fields
        check_names(self._table, rows.columns)
        columns = tuple(Column(field.name, *self._type(field), field.name in self._table.key) for field in fields)
        self.version = _version(rows)
        session.conf.set("spark.sql.ansi.enabled", "true")  # in which decimals have no exponents, from here on
        lines = [_cell(f.col(f"`{field.name.replace('`', '``')}`"), field.dataType) for field in fields]
        # Spark takes what it keeps of one query for the rows of another over the same paths, whatever is there by now
        one_of_its_kind = f.lit(self._group).isNotNull()
        self._rows = rows.where(one_of_its_kind).select(f.concat_ws("\t", *lines).alias("line"))
        relation = Relation(0, COMPUTED, self._table.name, ReplicaIdentity.INDEX, columns)
        return Described(relation, frozenset(), ())

    def _type(self, field: types.StructField) -> tuple[int, int]:
        """The oid and modifier of the type in Postgres."""
        kind = field.dataType
        if isinstance(kind, types.DecimalType):
            return _NUMERIC_OID, (kind.precision << 16 | kind.scale) + 4
        if isinstance(kind, _JSON):
            return Oid.JSON, -1
        for known, oid in _OIDS.items():
            if isinstance(kind, known):
                return oid, -1
        what = f"the column {field.name} has the type {kind.simpleString()}, which devices can't get"
        raise fault(self._table, what, "cast it in the query: `CAST(… AS string)`", "HW_2701")

    def lines(self, relation: Relation, batch_bytes: int) -> Iterator[list[str]]:
        """The rows, written down on executors before the first one comes."""
        del relation
        with self._errors(), self._job():
            kept = self._rows.persist(StorageLevel.DISK_ONLY)
            self._held.callback(_unpersist, kept)
            kept.count()
            batch: list[str] = []
            size = 0
            for (line,) in kept.toLocalIterator(prefetchPartitions=True):
                batch.append(line)
                size += len(line)
                if size >= batch_bytes:
                    self._check()
                    yield batch
                    batch, size = [], 0
            yield batch

    def finish(self) -> None:
        self.close()

    def cancel(self) -> None:
        """The job that watches `stop` ends."""

    def close(self) -> None:
        self._held.close()

    def _time_out(self) -> None:
        self._late = True

    def _check(self) -> None:
        if self._stop.is_set():
            raise GivenUpError("the query was given up", self._table.name)
        if self._late:
            fix = "make it read less, or raise `timeout` under `refresh`"
            raise fault(self._table, f"the query took longer than {self._table.refresh.timeout:g} s", fix, "HW_2702")

    @contextmanager
    def _job(self) -> Iterator[None]:
        """What this thread has Spark do, which is cancelled when it is late or no longer wanted."""
        what = f"computed table {self._table.name}"
        with job_group(self._context, self._pool, self._group, what, lambda: self._stop.is_set() or self._late):
            yield
            self._check()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Turn what Spark raises into errors of ours, and release everything."""
        try:
            yield
        except HeadwaterError:
            self.close()
            raise
        except Exception as error:  # when the JVM is gone, PySpark raises any exception
            failed = self._failure(error)
            self.close()
            if failed is None:
                raise
            raise failed from error
        except BaseException:
            self.close()
            raise

    def _failure(self, error: Exception) -> HeadwaterError | None:
        if (gone := lost(self._spark, self._context, error, self._table.name)) is not None:
            return gone
        try:
            self._check()
        except HeadwaterError as why:
            return why
        if not isinstance(error, (PySparkException, Py4JError)):
            return None
        return _refused(self._table, error)


def _refused(table: ComputedTable, error: PySparkException | Py4JError) -> ComputedTableError:
    """What is wrong with the query. A message about a value quotes it: of those, only Spark's name of the error."""
    condition = error.getCondition() if isinstance(error, PySparkException) else None
    said = condition or (_cause(error) if isinstance(error, Py4JJavaError) else type(error).__name__)
    if type(error).__name__ in {"AnalysisException", "ParseException"}:
        said = next((line for line in str(error).splitlines() if line.strip()), said)
    return fault(table, f"Spark refuses the query: {said}", "correct the query, or what it reads", "HW_2701")


def _cause(error: Py4JJavaError) -> str:
    """The name of the exception that an exception of the JVM began with."""
    cause = error.java_exception
    with suppress(Py4JError):  # the JVM may be gone
        while (deeper := cause.getCause()) is not None:
            cause = deeper
        return str(cause.getClass().getSimpleName())
    return type(error).__name__


def _unpersist(rows: DataFrame) -> None:
    with suppress(PySparkException, Py4JError, OSError):  # the JVM may be gone
        rows.unpersist()


# types

_TEXT_OID, _NUMERIC_OID = 25, 1700
_OIDS: dict[type[types.DataType], int] = {
    types.BooleanType: Oid.BOOL,
    types.ByteType: Oid.INT2,
    types.ShortType: Oid.INT2,
    types.IntegerType: Oid.INT4,
    types.LongType: Oid.INT8,
    types.FloatType: Oid.FLOAT4,
    types.DoubleType: Oid.FLOAT8,
    types.StringType: _TEXT_OID,
    types.BinaryType: Oid.BYTEA,
    types.DateType: Oid.DATE,
    types.TimestampType: Oid.TIMESTAMPTZ,
    types.TimestampNTZType: Oid.TIMESTAMP,
    types.TimeType: Oid.TIME,
    types.NullType: _TEXT_OID,
}
_JSON = (types.ArrayType, types.StructType, types.MapType, types.VariantType)
_AS_JSON = {
    "ignoreNullFields": "false",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",  # to the microsecond, as Spark has them
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
_ESCAPES = {"\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\v": "\\v"}


def _cell(column: SparkColumn, kind: types.DataType) -> SparkColumn:
    """A value as a cell of COPY text."""
    return f.coalesce(_text(column, kind), f.lit("\\N"))


def _text(column: SparkColumn, kind: types.DataType) -> SparkColumn:
    match kind:
        case types.BooleanType():
            return f.when(column, "t").when(~column, "f")
        case types.BinaryType():
            return f.concat(f.lit("\\\\x"), f.lower(f.hex(column)))
        case types.DateType():
            return _dated(column, "")
        case types.TimestampNTZType():
            return _dated(column, "")
        case types.TimestampType():
            return _dated(column, "+00")
        case _ if isinstance(kind, _JSON):
            return _escaped(f.to_json(column, _AS_JSON))
        case types.StringType():
            # Postgres has no NUL in text, and no text that is not UTF-8. Bytes are replaced, not what some collation
            # takes for equal
            return _escaped(f.replace(f.make_valid_utf8(column.cast("string")), f.lit("\0"), f.lit("")))
        case _:
            return column.cast("string")


def _escaped(text: SparkColumn) -> SparkColumn:
    for plain, escape in _ESCAPES.items():
        text = f.replace(text, f.lit(plain), f.lit(escape))
    return text


def _dated(column: SparkColumn, zone: str) -> SparkColumn:
    """A date or time. Postgres writes years before 1 as BC, and those after 9999 without a sign."""
    text, year = column.cast("string"), f.year(column)
    rest = f.regexp_extract(text, r"^[+-]?\d+(-.*)$", 1)
    before = f.concat(f.format_string("%04d", 1 - year), rest, f.lit(f"{zone} BC"))
    after = f.concat(year.cast("string"), rest, f.lit(zone))
    return f.when(year < 1, before).when(year > 9999, after).otherwise(f.concat(text, f.lit(zone)))


# versions

_CHANGING = frozenset({"Sample", "ScriptTransformation"})  # by chance, or whatever a program does
_WITHOUT_FILES = frozenset({"CTERelationRef", "OneRowRelation", "LocalRelation", "Range"})
_FILE = re.compile(r"path=(.*?); isDirectory=false; length=(\d+);.*?modification_time=(\d+);", re.DOTALL)


def _version(rows: DataFrame) -> str:
    """A digest of the files that a query reads; empty where its result may differ for the same files, or it may read
    something else, too."""
    plan = rows._jdf.queryExecution().analyzed()
    jvm = rows.sparkSession._jvm
    assert jvm is not None
    patterns = jvm.org.apache.spark.sql.catalyst.trees.TreePattern
    changing = (patterns.CURRENT_LIKE(), patterns.PLAN_EXPRESSION())  # the time and such; and what a subquery reads
    if not plan.deterministic() or any(plan.containsPattern(pattern) for pattern in changing):
        return ""
    digest = hashlib.sha256()
    waiting = [plan]
    while waiting:
        node = waiting.pop()
        if node.getClass().getSimpleName() in _CHANGING:
            return ""
        parts = node.children()
        waiting += (parts.apply(number) for number in range(parts.size()))
        files = [] if parts.size() else _files(node)
        if files is None:
            return ""
        digest.update(f"{sorted(files)}\n".encode())
    return digest.hexdigest()


def _files(leaf: JavaObject) -> list[tuple[str, ...]] | None:
    """The files that a leaf of a plan reads, with their sizes and times. None where it is something else."""
    name = leaf.getClass().getSimpleName()
    if name != "LogicalRelation":
        return [] if name in _WITHOUT_FILES else None
    relation = leaf.relation()
    if relation.getClass().getSimpleName() != "HadoopFsRelation":
        return None
    index = relation.location()
    if index.getClass().getSimpleName() != "InMemoryFileIndex":
        return None
    statuses = index.allFiles()
    found = _FILE.findall(statuses.mkString("\n"))
    return found if len(found) == statuses.size() else None
