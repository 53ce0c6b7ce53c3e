"""What names of tables and columns usually mean."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from headwater_rules.schema import SourceColumn

_BOUNDARY = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|[^A-Za-z0-9]+")

PEOPLE: Final = {
    "user": 100, "profile": 60, "account": 55, "customer": 55, "person": 50, "people": 50, "member": 40,
    "employee": 35, "client": 35, "student": 30, "patient": 30, "player": 30, "driver": 30, "staff": 20,
}  # fmt: skip
"""Names of tables of people, in the singular, and how likely each is the one whose ids tokens carry."""

OWNERS: Final = (
    "owner", "user", "account", "profile", "customer", "client", "member", "person", "author", "creator", "created_by",
    "creator_user", "created_by_user", "uploader", "uploaded_by", "poster", "posted_by", "submitter", "submitted_by",
    "requester", "requested_by", "sender", "buyer", "employee", "student", "patient", "player", "driver", "uid",
)  # fmt: skip
"""What a column calls the user whose row it is, without `_id`, the likelier first. `reviewer`, `approved_by` or
`blocked_user` name somebody else, and are left to the developer."""

SUBJECTS: Final = frozenset({
    "auth0_id", "auth0_sub", "firebase_uid", "firebase_id", "clerk_id", "clerk_user_id", "cognito_sub", "cognito_id",
    "keycloak_id", "supabase_id", "supabase_user_id", "auth_id", "auth_uid", "auth_user_id", "oidc_sub", "subject",
    "external_auth_id", "workos_id", "kinde_id", "stytch_id",
})  # fmt: skip
"""Columns of the table of people that hold what an identity provider calls them."""

LOGINS: Final = frozenset({"session", "credential", "identity", "authenticator", "passkey"})
"""The last word of a table whose rows belong to those who log in."""

_LOGIN = re.compile(
    r"((hashed|encrypted)_)?(password|passwd|passwort|pwd)(_(hash|digest|salt))?|last_(login|sign_in|signed_in|logged_in)"
    r"(_at)?|sign_in_count|email_(verified|confirmed)(_at)?|is_(superuser|staff)|(reset_password|remember)_token"
)

MEMBERSHIPS: Final = frozenset({
    "member", "membership", "participant", "participation", "collaborator", "contributor", "share", "attendee",
    "enrollment", "enrolment", "assignment", "seat",
})  # fmt: skip
"""The last word of a table that says who takes part in something."""

REACTIONS: Final = frozenset({
    "like", "favorite", "favourite", "follow", "follower", "vote", "view", "star", "bookmark", "read", "reaction",
    "notification", "rating", "review", "visit", "block", "mute", "report", "request", "invitation", "invite",
    "wish", "watch", "click", "impression",
})  # fmt: skip
"""The last word of a table whose rows join a user with something and give no right to it."""

_HELD: Final = frozenset({"active", "accepted", "approved", "confirmed", "enabled", "joined", "verified"})
_LOST: Final = frozenset({
    "deleted", "removed", "banned", "blocked", "revoked", "disabled", "pending", "suspended", "rejected", "declined",
    "cancelled", "canceled", "archived", "inactive", "expired", "kicked", "left", "invited", "discarded", "excluded",
    "ended", "deactivated",
})  # fmt: skip
"""What a column says of a membership that counts, and of one that does not (any more): `is_banned`, `banned_at`."""

NO_MEMBERS: Final = _LOST | {
    "ban", "block", "blacklist", "blocklist", "denylist", "former", "ex", "past", "previous", "old", "removal",
    "rejection", "denied", "suspension", "archive", "waitlist", "waitlisted", "waiting", "application", "applicant",
    "candidate", "exclusion", "kick", "history", "log",
}  # fmt: skip
"""Words by which a table lists those who are no members, or no longer."""

_MOMENTS: Final = frozenset(f"{word}_at" for word in _HELD | _LOST) - {
    "active_at", "enabled_at", "verified_at", "pending_at", "inactive_at", "expired_at", "invited_at",
}  # fmt: skip
"""Columns that say since when. The others may hold a time to come, or stay set."""

_UNKNOWN: Final = frozenset({"status", "state", "role"})
_BY_THE_CLOCK: Final = re.compile(
    r"expir(es|ed|e|y|ation)(_(at|on|date))?|valid_(from|to|until)|((suspended|banned|blocked)_)?until"
    r"|(start|end)(s_at|s_on|_date|_at)"
)

SIDE: Final = frozenset({"role", "permission", "status", "state", "type", "kind", "level", "plan"})
"""Tables that a membership refers to beside what it is a membership of."""

SERVERS_OWN: Final = frozenset({
    "session", "payment", "invoice", "subscription", "transaction", "charge", "refund", "order", "log", "audit",
    "event", "history", "version", "notification", "quota",
})  # fmt: skip
"""The last word of a table whose rows the server makes, whoever they belong to."""

PRIVILEGES: Final = frozenset({
    "role", "roles", "admin", "is_admin", "is_staff", "is_superuser", "permission", "permissions", "verified",
    "is_verified", "approved", "is_approved", "plan", "balance", "credit", "credits",
})  # fmt: skip
"""Columns by which a user would give himself more than he has."""

_SECRET = re.compile(
    r"(^|_)(password|passwd|passwort|pwd|secrets?|tokens?|salt|otp|totp|api_?keys?|private_?keys?|access_?keys?|ssn"
    r"|cvv|card_number|recovery_codes?|backup_codes?|digest)(_|$)"
)

_FRAMEWORK = re.compile(
    r"schema_migrations|ar_internal_metadata|active_storage_.*|action_(text|mailbox)_.*|solid_(queue|cache|cable)_.*"
    r"|good_jobs?(_.*)?|delayed_jobs|que_.*|oban_.*|django_.*|auth_(group|permission|user_groups|"
    r"user_user_permissions|group_permissions)|authtoken_.*|social_auth_.*|account_email.*|socialaccount_.*"
    r"|celery_.*|alembic_version|_?prisma_migrations|knex_.*|flyway_.*|databasechangelog.*|migrations?"
    r"|failed_jobs|job_batches|cache_locks|password_resets?(_tokens)?|personal_access_tokens"
    r"|oauth_.*|refresh_tokens?|access_tokens?|api_keys?|verification_tokens?|spatial_ref_sys"
)

MANAGED_SCHEMAS: Final = frozenset({
    "auth", "storage", "realtime", "_realtime", "_analytics", "vault", "graphql", "graphql_public", "extensions", "net",
    "cron", "pgsodium", "pgsodium_masks", "pgbouncer", "pgmq", "supabase_functions", "supabase_migrations",
    "hdb_catalog", "drizzle", "pgboss", "graphile_worker", "graphile_migrate", "headwater", "powersync", "topology",
    "tiger", "tiger_data", "partman", "headwater_upload",
})  # fmt: skip
"""Schemas of hosts and tools, whose tables no app syncs."""


def snake(name: str) -> str:
    """A name in lower case with underscores: `ownerId` is `owner_id`."""
    return "_".join(part for part in _BOUNDARY.split(name) if part).lower()


def singular(word: str) -> str:
    """A word of a name without its plural."""
    if word.endswith("ies") and len(word) > 4:
        return word[:-3] + "y"
    if word.endswith(("sses", "xes", "ches", "shes")):
        return word[:-2]
    return word[:-1] if word.endswith("s") and not word.endswith(("ss", "us", "is")) else word


def plurals(stem: str) -> frozenset[str]:
    """A name, and its plurals."""
    forms = {stem, f"{stem}s", f"{stem}es"}
    if stem.endswith("y"):
        forms.add(f"{stem[:-1]}ies")
    if stem == "person":
        forms.add("people")
    return frozenset(forms)


def last_word(name: str) -> str:
    """The last word of a name, in the singular."""
    return singular(snake(name).rpartition("_")[2])


def words_of(name: str) -> list[str]:
    """The words of a name, in the singular."""
    return [singular(word) for word in snake(name).split("_")]


def is_secret(column: str) -> bool:
    """Whether a column probably holds what no device needs, such as the digest of a password."""
    return _SECRET.search(snake(column)) is not None


def is_login(column: str) -> bool:
    """Whether a column is one of those who log in: with a password, or by way of an identity provider."""
    name = snake(column)
    return name in SUBJECTS or _LOGIN.fullmatch(name) is not None


def is_frameworks_own(schema: str, table: str) -> bool:
    """Whether a table probably belongs to a framework or a host, not to the app."""
    return schema in MANAGED_SCHEMAS or _FRAMEWORK.fullmatch(snake(table)) is not None or "%" in table


def standing(table: Sequence[SourceColumn]) -> tuple[tuple[str, str], ...]:
    """The columns by which a membership counts only for some time, and the test of each, with {} for the column."""
    return tuple((column.name, test) for column in table if (test := _test(column)))


def doubts(table: Sequence[SourceColumn]) -> tuple[str, ...]:
    """The columns that may say that a membership does not count, and that no test is known for."""
    return tuple(column.name for column in table if _may_decide(column.name) and not _test(column))


def _test(column: SourceColumn) -> str:
    name = snake(column.name)
    if column.type == "boolean":
        return "{}" if _word(name) in _HELD else "NOT {}" if _word(name) in _LOST else ""
    if name in _MOMENTS:
        return "{} IS NOT NULL" if name.removesuffix("_at") in _HELD else "{} IS NULL"
    return ""


def _may_decide(column: str) -> bool:
    name = snake(column)
    known = _word(name) in _HELD | _LOST or name in _MOMENTS or _BY_THE_CLOCK.fullmatch(name) is not None
    return known or name.rpartition("_")[2] in _UNKNOWN


def _word(name: str) -> str:
    return name.removeprefix("is_").removeprefix("was_")
