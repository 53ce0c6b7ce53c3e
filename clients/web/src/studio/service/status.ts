// The state of the service, as /api/admin/v1/status tells it.

export interface Trouble {
  code: string;
  what: string;
  where: string;
  fix: string;
  at: number;
  attempts: number;
}

export interface Finding {
  code: string;
  what: string;
  fix: string;
  fatal: boolean;
  sql: string[];
  since: number | null;
}

export interface Slot {
  name: string;
  wal_status: string;
  active: boolean;
  behind: number;
  held: number;
  left: number | null;
  limit: number | null;
}

export interface Progress {
  rows: number;
  rows_expected: number;
  tasks: number;
  tasks_expected: number;
  what: string;
}

export interface Computed {
  name: string;
  at: number;
  seconds: number;
  rows: number;
  changed: number;
  code: string;
  what: string;
  fix: string;
  failed_at: number;
}

export interface Source {
  source: string;
  state: string;
  since: number | null;
  why: string;
  cause: Trouble | null;
  at: number | null;
  trouble: Trouble | null;
  compared: { table: string; reason: string }[];
  findings: Finding[];
  slot: Slot | null;
  lag_seconds: number | null;
  lag_bytes: number | null;
  lag_known_at: number | null;
  wal_status: string | null;
  position: string | null;
  work: string;
  done: Progress | null;
  totals: { rows: number; transactions: number; bytes: number; chunks: number };
  computed: Computed[];
}

export interface Version {
  id: number;
  state: 'processing' | 'active' | 'stopped' | 'failed';
  origin: string;
  created: number;
  activated: number | null;
  stopped: number | null;
  note: string | null;
  author?: string | null;
  message?: string | null;
}

export interface Status {
  sources: Source[];
  versions: Version[];
  served: string;
  checkpoint: number | null;
  replicator: boolean;
  headwater: string;
  keys: { address: string; cause: string; since: number }[];
}

export interface Message {
  level: string;
  message: string;
}

export interface TableStatus {
  schema: string;
  name: string;
  pattern?: string;
  replication_id: string[];
  data_queries: boolean;
  parameter_queries: boolean;
  errors: Message[];
}

/** What the sync config reads, as /api/admin/v1/diagnostics tells it. */
export interface Diagnostics {
  active_sync_rules?: { connections: { id: string; tag: string; tables: TableStatus[] }[]; errors: Message[] };
}

export const tableName = ({ schema, name }: TableStatus): string => (schema === 'public' ? name : `${schema}.${name}`);
