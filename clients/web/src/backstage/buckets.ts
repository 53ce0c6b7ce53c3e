// The buckets that each device holds, as its own database says. Those that the chosen commit touched stand out.

import type { Bucket } from '../device';
import { h } from '../dom';
import type { Side } from '../panel';
import type { User } from '../server';
import type { Words } from './words';

const SIDES: Side[] = ['left', 'right'];

type HeldBucket = Bucket & { holders: Side[] };

export class Buckets {
  readonly element = h('div', { class: 'buckets', 'data-testid': 'buckets' });

  private readonly held: Record<Side, Bucket[]> = { left: [], right: [] };
  private touched = new Set<string>();
  private drawn = '';

  constructor(
    private readonly users: Record<Side, User>,
    private readonly words: Words
  ) {}

  hold(side: Side, buckets: Bucket[]): void {
    this.held[side] = buckets;
    this.draw();
  }

  touch(names: Iterable<string>): void {
    this.touched = new Set(names);
    this.draw();
  }

  private draw(): void {
    const state = JSON.stringify([this.held, [...this.touched]]);
    if (state === this.drawn) return;
    this.drawn = state;
    const groups = [...Map.groupBy(this.all(), ({ name }) => this.words.bucket(name).stream)];
    const sum = (buckets: HeldBucket[]) => buckets.reduce((total, { rows }) => total + rows, 0);
    groups.sort(([, one], [, two]) => sum(two) - sum(one));
    this.element.replaceChildren(
      ...groups.map(([stream, buckets]) =>
        h(
          'div',
          { class: 'group' },
          h('span', { class: 'stream' }, stream),
          h('div', {}, ...buckets.map((each) => this.chip(each)))
        )
      )
    );
  }

  /** The buckets of both people, those that they have in common first. */
  private all(): HeldBucket[] {
    const found = new Map<string, HeldBucket>();
    for (const side of SIDES)
      for (const { name, rows } of this.held[side]) {
        const known = found.get(name);
        if (known) known.holders.push(side);
        else found.set(name, { name, rows, holders: [side] });
      }
    return [...found.values()].sort((one, two) => two.holders.length - one.holders.length);
  }

  private chip({ name, rows, holders }: HeldBucket): HTMLElement {
    const people = holders.map((side) => this.users[side].name);
    return h(
      'span',
      {
        class: `bucket${this.touched.has(name) ? ' touched' : ''}`,
        'data-testid': 'bucket',
        'data-holders': holders.join(' '),
        title: `${name}: ${rows} rows, on the device of ${people.join(' and ')}`
      },
      ...holders.map((side) => h('span', { class: `holder ${side}` }, this.users[side].name.slice(0, 1))),
      h('span', { class: 'about' }, this.words.bucket(name).about || 'everything'),
      h('small', {}, String(rows))
    );
  }
}
