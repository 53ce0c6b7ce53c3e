// What happens to the rows of both people: what the server tells of each commit, put together with when a screen
// showed it.

import type { View } from '../device';
import type { Side } from '../panel';
import { ask, type User } from '../server';

export interface Lines {
  first: number;
  last: number;
  giving: number[];
}

export interface Op {
  op_id: number;
  op: 'PUT' | 'REMOVE';
  table: string;
  id: string;
  bucket: string;
  stream: string;
  data: Record<string, unknown> | null;
  lines: Lines;
}

export interface Write {
  by: string | null;
  relation: string;
  rows: number;
  sql: string;
}

interface Commit {
  op_id: number;
  lsn: string;
  committed: number;
  writes: Write[];
  ops: Op[];
  more: number;
}

interface Trace {
  now: number;
  checkpoint: number;
  commits: Commit[];
}

/** When a person's screen showed a commit, and what it changed of his buckets. */
export interface Arrival {
  ms: number;
  /** How much of that the person had no network. */
  offline: number;
  gained: string[];
  lost: string[];
}

export interface Happening extends Commit {
  /** Whose buckets the ops are in. */
  concerned: Set<Side>;
  arrivals: Partial<Record<Side, Arrival>>;
}

/** What a device holds, and up to which op its tables have it. */
export type Held = Pick<View, 'applied' | 'buckets'>;

interface Shown {
  applied: number;
  at: number;
  gained: string[];
  lost: string[];
}

interface Span {
  from: number;
  to: number;
}

const KEPT = 30;
const SIDES: Side[] = ['left', 'right'];

export class Story {
  private readonly happenings = new Map<number, Happening>();
  private readonly shown: Record<Side, Shown[]> = { left: [], right: [] };
  private readonly buckets: Partial<Record<Side, Set<string>>> = {};
  private readonly offline: Record<Side, Span[]> = { left: [], right: [] };
  private readonly seen: Partial<Record<Side, number>> = {};
  private readonly clock = new Clock();
  private asking = false;
  private again = false;

  constructor(
    private readonly users: Record<Side, User>,
    private readonly show: (newestFirst: Happening[]) => void
  ) {}

  /** A person's network went, or came back. */
  network(side: Side, offline: boolean): void {
    const spans = this.offline[side];
    const now = moment();
    if (offline) spans.push({ from: now, to: Infinity });
    else if (spans.length > 0) spans[spans.length - 1]!.to = now;
    if (spans.length > KEPT) spans.shift();
  }

  /** A device's screen has been drawn with this view. */
  drawn(side: Side, { applied, buckets }: Held): void {
    const before = this.buckets[side];
    const last = this.shown[side].at(-1);
    if (!Number.isFinite(applied)) return;
    const names = new Set(buckets.map(({ name }) => name));
    this.buckets[side] = names; // a first sync brings them in parts, by priority
    if (last && applied <= last.applied) return;
    this.shown[side].push({
      applied,
      at: moment(),
      gained: before ? [...names].filter((name) => !before.has(name)) : [],
      lost: before ? [...before].filter((name) => !names.has(name)) : []
    });
    if (this.shown[side].length > 10 * KEPT) this.shown[side].shift();
    void this.ask();
  }

  private async ask(): Promise<void> {
    this.again = true;
    if (this.asking) return;
    this.asking = true;
    try {
      while (this.again) {
        this.again = false;
        await Promise.all(SIDES.map((side) => this.askFor(side)));
        this.arrive();
      }
    } catch (error) {
      console.warn(error); // the server is away; the next change asks again
    } finally {
      this.asking = false;
    }
  }

  private async askFor(side: Side): Promise<void> {
    const after = this.seen[side];
    const sent = Date.now();
    const trace = await ask<Trace>(this.users[side], 'trace', after === undefined ? {} : { after: String(after) });
    this.clock.learn(sent, Date.now(), trace.now * 1000);
    this.seen[side] = trace.checkpoint;
    for (const commit of trace.commits) this.add(side, commit);
  }

  private add(side: Side, commit: Commit): void {
    const known = this.happenings.get(commit.op_id);
    const happening = known ?? { ...commit, ops: [], concerned: new Set<Side>(), arrivals: {} };
    const ids = new Set(happening.ops.map(({ op_id }) => op_id));
    happening.ops = [...happening.ops, ...commit.ops.filter(({ op_id }) => !ids.has(op_id))].sort(
      (one, two) => one.op_id - two.op_id
    );
    happening.concerned.add(side);
    this.happenings.set(commit.op_id, happening);
  }

  /** Set the first screen of each person that contains each commit. */
  private arrive(): void {
    const newest = [...this.happenings.values()].sort((one, two) => two.op_id - one.op_id).slice(0, KEPT);
    for (const id of this.happenings.keys()) if (id < (newest.at(-1)?.op_id ?? 0)) this.happenings.delete(id);
    for (const happening of newest)
      for (const side of SIDES) {
        const first = this.shown[side].find(({ applied }) => applied >= happening.op_id);
        if (!first || happening.arrivals[side]) continue;
        if (!happening.concerned.has(side) && first.gained.length + first.lost.length === 0) continue;
        const committed = this.clock.here(happening.committed * 1000);
        happening.arrivals[side] = {
          ms: Math.max(0, first.at - committed),
          offline: within(this.offline[side], committed, first.at),
          gained: first.gained,
          lost: first.lost
        };
      }
    this.show(newest);
  }
}

const moment = (): number => performance.timeOrigin + performance.now();

/** How much of the time from `start` to `end` the spans cover. */
const within = (spans: Span[], start: number, end: number): number =>
  spans.reduce((sum, { from, to }) => sum + Math.max(0, Math.min(to, end) - Math.max(from, start)), 0);

/** Turns the server's time into the browser's. On one machine they are the same. */
class Clock {
  private offset = 0;
  private best = Infinity;

  learn(sent: number, received: number, there: number): void {
    const roundTrip = received - sent;
    if (roundTrip > this.best) return;
    this.best = roundTrip;
    const same = there >= sent - 1 && there <= received + 1;
    this.offset = same ? 0 : there - (sent + received) / 2;
  }

  here(there: number): number {
    return there - this.offset;
  }
}
