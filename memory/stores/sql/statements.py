"""The statements of `SQLStore`, each compiled once for its dialect."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from operator import itemgetter
from typing import Any, TypeVar

import sqlalchemy as sa

from turnwise.memory.conversation.ledger import NUMBERS
from turnwise.memory.conversation.runs import OPEN_STATES
from turnwise.memory.conversation.turns import OPEN_STATUSES
from turnwise.memory.stores.sql import schema
from turnwise.memory.stores.sql.database import insert_into
from turnwise.memory.stores.sql.rows import CHANGED_COLUMNS, CHANGED_DELIVERY_COLUMNS, CHANGED_RUN_COLUMNS, OF_RUN
from turnwise.memory.values.ranges import MAX_COUNT
from turnwise.memory.values.weights import BLOCK_BYTES, PAGE_BYTES

Result = TypeVar("Result")

Row = Any
"""The parameters of one row for a driver: a tuple, or a dict by name."""

_SIZES = (32, 8)
"""Row counts for which multi-row INSERT statements are compiled."""


@dataclass(frozen=True)
class _Compiled:
    text: str
    pick: Callable[[dict[str, Any]], tuple[Any, ...]] | None
    """Picks a row's parameters in order; None for a driver that takes them by name."""
    constants: dict[str, Any]
    inserts: dict[int, str]
    """By number of rows: the statement that inserts that many."""


class Statement:
    """A statement that is compiled at its first use, and then kept.

    Executing a Core statement through SQLAlchemy costs more than SQLite's commit. To compile all statements of a store
    takes 50 ms, and most processes need a few of them.
    """

    def __init__(self, statement: Any, dialect: sa.Dialect, columns: Sequence[str] | None = None) -> None:
        self._statement, self._dialect, self._columns = statement, dialect, columns

    @cached_property
    def _compiled(self) -> _Compiled:
        compiled = self._statement.compile(dialect=self._dialect, column_keys=self._columns)
        text = str(compiled)
        # Multi-row statements help only with SQLite: PostgreSQL gets all rows of a statement in one round trip anyway.
        values = _VALUES.search(text) if self._dialect.name == "sqlite" else None
        return _Compiled(
            text,
            _picker(compiled.positiontup),
            {name: value for name, value in compiled.params.items() if value is not None},
            {size: _with_rows(values, size) for size in _SIZES} if values else {},
        )

    @property
    def text(self) -> str:
        """The statement in SQL, with the driver's parameters."""
        return self._compiled.text

    def __call__(
        self, connection: sa.Connection, values: dict[str, Any] | list[dict[str, Any]]
    ) -> sa.CursorResult[Any]:
        if isinstance(values, list):
            return connection.exec_driver_sql(self.text, [self.bind(row) for row in values])
        return connection.exec_driver_sql(self.text, self.bind(values))

    def rows(self, connection: sa.Connection, values: dict[str, Any]) -> Generator[tuple[Any, ...], None, None]:
        """Yield rows as the driver's tuples. For small, frequent reads; close it if not all are read."""
        cursor: Any = connection.connection.cursor()
        try:
            cursor.execute(self.text, self.bind(values))
            yield from cursor
        finally:
            cursor.close()

    def write(self, cursor: Any, rows: Sequence[Row]) -> int:
        """Execute on a driver's own cursor, once per bound row; return how many rows the last execution changed."""
        if len(rows) >= _SIZES[-1]:
            rows = self._insert_many(cursor, rows)
        if len(rows) == 1:
            cursor.execute(self.text, rows[0])
        elif rows:
            cursor.executemany(self.text, rows)
        return int(cursor.rowcount) if rows else 0

    def _insert_many(self, cursor: Any, rows: Sequence[Row]) -> Sequence[Row]:
        """Insert rows by multi-row statements; return the rows that are left.

        The driver releases the GIL for each row of an `executemany`. While a busy event loop then holds the GIL, all
        other writers of the file wait.
        """
        for size, text in self._compiled.inserts.items():
            while len(rows) >= size:
                cursor.execute(text, list(chain.from_iterable(rows[:size])))
                rows = rows[size:]
        return rows

    def bind(self, values: dict[str, Any]) -> Row:
        """Return a row's parameters in the driver's form."""
        compiled = self._compiled
        if compiled.constants:
            values = compiled.constants | values
        return values if compiled.pick is None else compiled.pick(values)


_HAS_REMOVALS = sa.or_(schema.turns.c.forgotten.is_not(None), schema.turns.c.removed.is_not(None))
"""The condition that a turn has lost something."""

_VALUES = re.compile(r"VALUES (\([^()]*\))")


def _with_rows(values: re.Match[str], count: int) -> str:
    start, stop = values.span(1)
    return f"{values.string[:start]}{', '.join([values[1]] * count)}{values.string[stop:]}"


def summed(insert: Any) -> Any:
    """Return an insert into the ledger that adds its numbers to those of a row that is there already."""
    numbers = {name: schema.ledger.c[name] + insert.excluded[name] for name in NUMBERS}
    return insert.on_conflict_do_update(index_elements=[*schema.ledger.primary_key.columns], set_=numbers)


def _clearing(dialect: sa.Dialect) -> Any:
    """Return what replaces a block of a log, unless a fork has it too.

    SQLite gives the pages of a table back where rows are deleted, and not where they become shorter; so the row is
    replaced there.
    """
    blocks, lent = schema.blocks.c, schema.borrowed.c
    body: sa.BindParameter[str] = sa.bindparam("b_body")
    is_here = (
        blocks.log == sa.bindparam("b_log"),
        blocks.at == sa.bindparam("b_at"),
        ~sa.exists().where(lent.log == blocks.log, lent.start <= blocks.at, lent.stop > blocks.at),
    )
    if dialect.name == "postgresql":
        return sa.update(schema.blocks).where(*is_here).values(body=body)
    insert = insert_into(schema.blocks, dialect).prefix_with("OR REPLACE")
    return insert.from_select(["log", "at", "body"], sa.select(blocks.log, blocks.at, body).where(*is_here))


def _picker(names: Sequence[str] | None) -> Callable[[dict[str, Any]], tuple[Any, ...]] | None:
    if names is None:
        return None
    return itemgetter(*names) if len(names) > 1 else lambda values: tuple(values[name] for name in names)


def statements_of(dialect: sa.Dialect) -> Statements:
    """Return the statements for a dialect. All stores of a process that use the same driver share them."""
    key = dialect.name, dialect.driver
    if key not in _OF_DRIVER:
        _OF_DRIVER[key] = Statements(dialect)
    return _OF_DRIVER[key]


_OF_DRIVER: dict[tuple[str, str], Statements] = {}


class Statements:
    """The statements of the store's methods, for one dialect."""

    def __init__(self, dialect: sa.Dialect) -> None:
        def statement(core: Any, columns: Sequence[str] | None = None) -> Statement:
            return Statement(core, dialect, columns)

        sessions, turns, runs, events, bind = schema.sessions, schema.turns, schema.runs, schema.events, sa.bindparam
        is_session = (sessions.c.user_id == bind("user_id"), sessions.c.session_id == bind("session_id"))
        owner = sa.select(sessions.c.key).where(*is_session).scalar_subquery()
        columns = [column.name for column in sessions.columns]
        fresh = insert_into(sessions, dialect).on_conflict_do_nothing()
        self.insert_session = statement(fresh.returning(sessions.c.key), columns)
        self.session = statement(sa.select(sessions).where(*is_session))
        self.session_state = statement(sa.select(sessions, _own_tenant()).where(*is_session))
        self.raise_epoch = statement(
            sa.update(sessions)
            .where(
                *is_session,
                sessions.c.revision
                == sa.func.coalesce(sa.cast(bind("revision_before"), sa.BigInteger), sessions.c.revision),
            )
            .values(
                epoch=sessions.c.epoch + sa.literal_column("1"),
                revision=sessions.c.revision + bind("jump", type_=sa.BigInteger),
            )
            .returning(*sessions.columns, self._now(dialect).label("now"), _own_tenant())
        )
        self.now = statement(sa.select(self._now(dialect)))
        self.put_session = statement(
            sa.update(sessions)
            .where(
                sessions.c.key == bind("b_key"),
                sessions.c.user_id == bind("b_user_id"),
                sessions.c.session_id == bind("b_session_id"),
                sessions.c.epoch == bind("b_epoch"),
                sessions.c.revision == bind("b_revision_before"),
                sessions.c.log_size == bind("b_log_size_before"),
            )
            .values({name: bind(f"b_{name}") for name in CHANGED_COLUMNS})
        )
        self.insert_borrowed = statement(sa.insert(schema.borrowed))
        self.insert_block = statement(sa.insert(schema.blocks))
        blocks = schema.blocks.c
        within = (blocks.log == bind("log"), blocks.at >= bind("start"), blocks.at < bind("stop"))
        read = sa.select(blocks.at, blocks.body).where(*within).order_by(blocks.at)
        self.blocks = statement(first_rows(read, blocks.at, dialect, BLOCK_BYTES))
        self.count_blocks = statement(sa.select(sa.func.count()).select_from(schema.blocks).where(*within))
        upsert = insert_into(turns, dialect)
        self.put_turn = statement(
            upsert.on_conflict_do_update(
                index_elements=["session", "idx"],
                set_={
                    column.name: upsert.excluded[column.name]
                    for column in turns.columns
                    if column.name not in ("session", "idx")
                },
            )
        )
        self.drop_turn = statement(
            sa.delete(turns).where(turns.c.session == bind("b_session"), turns.c.idx == bind("b_idx"))
        )
        of_key = turns.c.session == bind("key")
        open_turn = turns.c.status.in_(literals(OPEN_STATUSES))
        self.head = statement(
            _whole_turns().where(of_key, ~open_turn).order_by(turns.c.idx.desc()).limit(sa.literal_column("1"))
        )
        open_run = runs.c.state.in_(literals(OPEN_STATES))  # the same predicate as the index
        self.open_turns = statement(
            sa.union_all(
                _whole_turns().where(of_key, turns.c.status == sa.literal_column("'pending'")),
                _whole_turns(is_open=True).where(runs.c.session == bind("key"), open_run, open_turn),
            ).order_by("idx")
        )
        self.open_runs = statement(
            sa.select(runs)
            .where(runs.c.session == bind("key"), runs.c.state.in_(literals(OPEN_STATES)))
            .order_by(runs.c.turn_index)
        )
        self.insert_run = statement(sa.insert(runs))
        self.put_run = statement(
            sa.update(runs)
            .where(runs.c.session == bind("b_session"), runs.c.turn_index == bind("b_turn_index"))
            .values({name: bind(f"b_{name}") for name in CHANGED_RUN_COLUMNS})
        )
        self.run = statement(
            sa.select(runs, sessions.c.session_id, sessions.c.user_id)
            .join(sessions, sessions.c.key == runs.c.session)
            .where(runs.c.run_id == bind("run_id"), sessions.c.user_id == bind("user_id"))
        )
        self.run_of_key = statement(
            sa.select(runs).where(runs.c.session == owner, runs.c.idempotency_key == bind("idempotency_key"))
        )
        self.forget_events = statement(
            sa.delete(events).where(
                events.c.session == bind("b_session"), events.c.seq <= bind("b_upto"), events.c.event_key.is_(None)
            )
        )
        self.forget_turns = statement(
            sa.delete(events).where(
                events.c.session == bind("b_session"),
                events.c.turn_index <= bind("b_upto"),
                events.c.event_key.is_(None),
            )
        )
        self.clear_block = statement(_clearing(dialect))
        self.insert_event = statement(sa.insert(events))
        self.runs_of_events = statement(
            sa.select(runs.c.turn_index, runs.c.run_id, runs.c.usage, runs.c.stop_reason).where(
                runs.c.session == owner, runs.c.turn_index.between(bind("first"), bind("last"))
            )
        )
        of_event = [column for column in events.columns if column is not events.c.session]
        self.event_of_key = statement(
            sa.select(*of_event).where(events.c.session == owner, events.c.event_key == bind("event_key"))
        )

        def page(rows: sa.Select[Any], number: sa.Column[Any], *filters: Any) -> Statement:
            rows = rows.where(number.table.c.session == owner, number > bind("after"), *filters).order_by(number)
            return statement(first_rows(rows.limit(bind("limit")), number, dialect))

        self._add_lists(statement)
        self._add_members(statement, dialect)
        self._add_deliveries(statement, dialect, is_session)
        self._add_sums(statement, dialect)
        self._add_tenants(statement, dialect)
        self.turns = page(_whole_turns(), turns.c.idx)
        self.turns_with_removals = page(_whole_turns(), turns.c.idx, _HAS_REMOVALS)
        self.runs = page(sa.select(runs), runs.c.turn_index)
        self.events = page(sa.select(*of_event), events.c.seq)

    def _add_lists(self, statement: Any) -> None:
        sessions, runs, bind = schema.sessions, schema.runs, sa.bindparam
        unsettled = (
            sa.select(runs.c.session)
            .where(
                runs.c.state.in_(literals(OPEN_STATES)),  # the same predicate as the index
                runs.c.state != sa.literal_column("'awaiting_approval'"),
                runs.c.session > bind("after"),
            )
            .distinct()
            .order_by(runs.c.session)
            .limit(bind("limit"))
            .subquery()
        )
        self.unsettled = statement(
            sa.select(sessions.c.key, sessions.c.session_id, sessions.c.user_id)
            .join(unsettled, unsettled.c.session == sessions.c.key)
            .order_by(sessions.c.key)
        )
        self.expired = statement(
            sa.select(sessions)
            .where(
                sessions.c.ttl_s.is_not(None),
                sessions.c.updated_at + sessions.c.ttl_s <= bind("now"),
                sessions.c.key > bind("after"),
            )
            .order_by(sessions.c.key)
            .limit(bind("limit"))
        )

    def _add_members(self, statement: Any, dialect: sa.Dialect) -> None:
        members, one, bind = schema.members, schema.members.c, sa.bindparam
        columns = [column.name for column in members.columns]
        self.add_member = statement(insert_into(members, dialect).on_conflict_do_nothing(), columns)
        is_one = (one.user_id == bind("b_user_id"), one.session == bind("b_session"))
        self.drop_member = statement(sa.delete(members).where(*is_one))

    def _add_deliveries(self, statement: Any, dialect: sa.Dialect, is_session: tuple[Any, ...]) -> None:
        sessions, deliveries, bind = schema.sessions, schema.deliveries, sa.bindparam
        one = deliveries.c
        self.insert_delivery = statement(sa.insert(deliveries))
        columns = [column.name for column in deliveries.columns]
        self.add_delivery = statement(insert_into(deliveries, dialect).on_conflict_do_nothing(), columns)
        is_before = (
            one.session == bind("b_session"),
            one.key == bind("b_key"),
            one.delivery_id == bind("b_delivery_id"),
            one.revision == bind("b_revision_before"),
        )
        changed: dict[str, Any] = {name: bind(f"b_{name}") for name in CHANGED_DELIVERY_COLUMNS}
        self.put_delivery = statement(sa.update(deliveries).where(*is_before).values(changed))
        self.drop_delivery = statement(sa.delete(deliveries).where(*is_before))
        sender = sa.select(sessions.c.key).where(*is_session).scalar_subquery()
        self.drop_received = statement(sa.delete(deliveries).where(one.session == sender, *is_before[1:]))
        # The lock keeps the session from being deleted before the delivery is stored, and hinders no commit.
        owner = sa.select(sessions.c.key).where(*is_session)
        self.owner = statement(owner.with_for_update(read=True, key_share=True))
        whole = sa.select(deliveries, sessions.c.session_id).join(sessions, sessions.c.key == one.session)
        self.delivery = statement(whole.where(*is_session, one.key == bind("delivery_key")))
        last = sa.tuple_(bind("time", type_=sa.Double), bind("after", type_=sa.Text))
        due = (
            whole.where(one.due_at <= bind("now"), sa.tuple_(one.due_at, one.delivery_id) > last)
            .order_by(one.due_at, one.delivery_id)
            .limit(bind("limit"))
        )
        self.due = statement(due)
        self.due_without_users = statement(due.where(one.user_id.not_in(sa.select(_users(dialect).c.value))))
        first = sa.select(sa.func.min(one.due_at)).where(one.due_at.is_not(None)).scalar_subquery()
        self.next_due = statement(sa.select(first, self._now(dialect)))
        is_stored = (one.user_id == bind("user_id"), one.delivery_id == bind("delivery_id"))
        self.stored_id = statement(sa.select(one.delivery_id).where(*is_stored))

    def _add_sums(self, statement: Any, dialect: sa.Dialect) -> None:
        self.add_spent = statement(summed(insert_into(schema.ledger, dialect)))
        counters, bind = schema.counters, sa.bindparam
        starts, ends = _period(dialect)
        names = ("user_id", "agent", "quota_id", "tenant")
        row: dict[str, Any] = {name: bind(name) for name in names} | {"used": bind("amount")}
        insert = insert_into(counters, dialect).values(**row, starts=starts, ends=ends)
        one, new = counters.c, insert.excluded
        is_same = one.starts.between(new.starts, new.ends)  # see QuotaCounter.is_of
        most = sa.cast(bind("most"), sa.BigInteger)
        changed = {
            "used": sa.case((is_same, one.used), else_=sa.literal_column("0")) + new.used,
            "starts": sa.case((is_same, one.starts), else_=new.starts),
            "ends": sa.case((is_same, one.ends), else_=new.ends),
        }
        self.add_count = statement(
            insert.on_conflict_do_update(
                index_elements=[*counters.primary_key.columns],
                set_=changed,
                where=most.is_(None) | ~is_same | (one.used < most),
            )
        )
        empty: Any = sa.literal_column("''")
        own = (one[name].in_([empty, bind(name)]) for name in ("user_id", "agent", "tenant"))
        self.counters = statement(sa.select(counters).where(*own))

    def _add_tenants(self, statement: Any, dialect: sa.Dialect) -> None:
        table, one, bind = schema.users, schema.users.c, sa.bindparam
        insert = insert_into(table, dialect)
        changed = {"tenant": insert.excluded.tenant}
        self.put_tenant = statement(insert.on_conflict_do_update(index_elements=["user_id"], set_=changed))
        self.drop_tenant = statement(sa.delete(table).where(one.user_id == bind("user_id")))
        users = _users(dialect)
        self.tenants_of = statement(sa.select(one.user_id, one.tenant).where(one.user_id.in_(sa.select(users.c.value))))
        self.tenants = statement(
            sa.select(one.tenant, sa.func.count())
            .where(one.tenant > bind("after"))
            .group_by(one.tenant)
            .order_by(one.tenant)
            .limit(bind("limit"))
        )
        user_id = one.user_id if dialect.name == "sqlite" else sa.collate(one.user_id, "C")
        self.users = statement(
            sa.select(one.user_id)
            .where(one.tenant == bind("tenant"), user_id > bind("after"))
            .order_by(user_id)
            .limit(bind("limit"))
        )

    @staticmethod
    def _now(dialect: sa.Dialect) -> sa.ColumnElement[Any]:
        """Return an expression for the server's time; NULL for SQLite, which has no server."""
        if dialect.name == "sqlite":
            return sa.null()
        return sa.literal_column("CAST(EXTRACT(EPOCH FROM clock_timestamp()) AS DOUBLE PRECISION)", sa.Double)


def _whole_turns(*, is_open: bool = False) -> sa.Select[Any]:
    """Return a statement for turns with what the rows of their runs have: see `turn_row`.

    Args:
        is_open: whether all of them have a run.
    """
    turns, runs = schema.turns, schema.runs
    same = (runs.c.session == turns.c.session) & (runs.c.turn_index == turns.c.idx)
    of_run: Any = sa.literal_column(f"'{OF_RUN}'")
    columns = {column.name: column for column in turns.columns}
    whole: dict[str, sa.ColumnElement[Any]] = {
        name: sa.case((turns.c[name] == of_run, run_column), else_=turns.c[name])
        for name, run_column in {
            "run_id": runs.c.run_id,
            "status": runs.c.state,
            "usage": runs.c.usage,
            "stop_reason": runs.c.stop_reason,
        }.items()
    }
    whole["created_at"] = sa.func.coalesce(turns.c.created_at, runs.c.created_at)
    selected = [whole[name].label(name) if name in whole else column for name, column in columns.items()]
    return sa.select(*selected).select_from(turns.join(runs, same, isouter=not is_open))


def _own_tenant() -> Any:
    """Return a column with the tenant of the user in the parameter `user_id`."""
    users = schema.users.c
    return sa.select(users.tenant).where(users.user_id == sa.bindparam("user_id")).scalar_subquery().label("tenant")


def _users(dialect: sa.Dialect) -> Any:
    """Return a table with one column, `value`, of the users in the parameter `users`, a list in JSON."""
    elements = sa.func.json_each if dialect.name == "sqlite" else sa.func.json_array_elements_text
    return elements(sa.cast(sa.bindparam("users"), sa.Text if dialect.name == "sqlite" else sa.JSON)).table_valued(
        "value"
    )


def _period(dialect: sa.Dialect) -> tuple[sa.ColumnElement[Any], sa.ColumnElement[Any]]:
    """Return expressions for when the present period of a quota begins and ends.

    They are by the server's clock, if there is a server. So all processes count in one period, whatever their own
    clocks say.
    """
    if dialect.name == "sqlite":
        return sa.bindparam("starts"), sa.bindparam("ends")
    per = sa.cast(sa.bindparam("per"), sa.Text)
    now = sa.literal_column("statement_timestamp() AT TIME ZONE 'UTC'", sa.DateTime)
    first = sa.func.date_trunc(per, now, type_=sa.DateTime)
    length = sa.cast(sa.literal_column("'1 '", sa.Text).concat(per), sa.Interval)
    starts, ends = (sa.cast(sa.extract("epoch", time), sa.BigInteger) for time in (first, first + length))
    return starts, ends


def first_rows(
    select: sa.Select[Any], number: sa.Column[Any], dialect: sa.Dialect, bytes_each: int = 0
) -> sa.Select[Any]:
    """Return a statement for the first rows of another one, up to the first with which they have `PAGE_BYTES` of text.

    SQLite reads rows one by one, so there the reader stops. PostgreSQL sends all rows of a statement.

    Args:
        number: the column that orders the rows.
        bytes_each: what each row counts besides its text.
    """
    if dialect.name == "sqlite":
        return select
    texts = [column for column in select.selected_columns if isinstance(column.type, sa.Text)]
    size: sa.ColumnElement[Any] = sum(
        (sa.func.coalesce(sa.func.octet_length(column), sa.literal_column("0")) for column in texts),
        sa.literal_column(str(bytes_each)),
    )
    before = sa.func.sum(size).over(order_by=number, rows=(None, -1))
    rows = select.add_columns(sa.func.coalesce(before, sa.literal_column("0")).label("bytes_before")).subquery()
    shown = [rows.c[column.name] for column in select.selected_columns]
    is_first = rows.c.bytes_before <= sa.literal_column(str(PAGE_BYTES))
    return sa.select(*shown).where(is_first).order_by(rows.c[number.name])


def read_first(rows: Any) -> list[Any]:
    """Return the first rows, up to the one with which they have `PAGE_BYTES` of text, and close them."""
    return read_page(rows, MAX_COUNT)[0]


def read_page(rows: Any, limit: int) -> tuple[list[Any], bool]:
    """Return the first `limit` rows, or fewer with `PAGE_BYTES` of text, and whether there are more; close them."""
    page: list[Any] = []
    size = 0
    with closing(rows):
        for row in rows:
            if len(page) == limit or size > PAGE_BYTES:
                return page, True
            page.append(row)
            size += sum([len(text) for text in row if isinstance(text, str)])  # a generator takes twice as long
    return page, False


def literals(values: Iterable[str]) -> list[sa.ColumnElement[str]]:
    # Literals, not parameters, so that the schema's partial indexes match the statement.
    return [sa.literal_column(f"'{value}'") for value in values]
