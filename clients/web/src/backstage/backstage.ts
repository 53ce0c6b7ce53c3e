// What happens behind the lists: each commit on its way to both screens, the rules that let its rows through, and the
// buckets of each device.

import type { View } from '../device';
import { h } from '../dom';
import type { Listener, Side } from '../panel';
import type { Todo } from '../schema';
import { ask, type User } from '../server';
import { Buckets } from './buckets';
import { Feed } from './feed';
import { Rules, type RowName } from './rules';
import { Story, type Held } from './story';
import { Waiting } from './waiting';
import { Words } from './words';

interface About {
  rules: string;
  rules_name: string;
  /** The command that opens a database session; the address of the database where no program for it is there. */
  database: string;
}

const EXAMPLE = `insert into todos (id, list_id, title)
select gen_random_uuid(), id, 'Look at the sky'
from lists where name = 'Weekend together';`;

const OWN = `headwater init
headwater source prepare
headwater doctor
headwater serve`;

export class Backstage implements Listener {
  readonly element: HTMLElement;

  private readonly words: Words;
  private readonly story: Story;
  private readonly waiting: Waiting;
  private readonly rules: Rules;
  private readonly buckets: Buckets;
  private readonly rulesName = h('code', {});
  private readonly database = h('pre', { tabindex: '0', role: 'group', 'aria-label': 'How to open a database session' });

  constructor(users: Record<Side, User>, everybody: User[], plays: HTMLElement, example = EXAMPLE) {
    this.words = new Words(everybody);
    this.rules = new Rules(users, this.words);
    this.buckets = new Buckets(users, this.words);
    this.waiting = new Waiting(users, this.words);
    const feed = new Feed(users, this.words, (happening) => {
      this.buckets.touch(happening.ops.map(({ bucket }) => bucket));
      void this.rules.explainHappening(happening);
    });
    this.story = new Story(users, (newestFirst) => feed.show(newestFirst));
    this.element = h(
      'section',
      { class: 'panel backstage', 'aria-label': 'What happens', 'data-testid': 'backstage' },
      h('header', {}, h('h2', {}, 'What happens'), plays),
      this.waiting.element,
      part('Commits on their way', 'story', feed.element),
      part('The rules that let it through', 'rules', this.rules.element, this.rulesName),
      part('Buckets on each device', 'bucket-part', this.buckets.element),
      h(
        'details',
        { class: 'by-hand' },
        h('summary', {}, 'Write SQL by hand'),
        h('p', { class: 'note' }, 'Anything that writes to Postgres reaches the devices. Open a database session:'),
        this.database,
        h('p', { class: 'note' }, 'and write, for example:'),
        h('pre', { tabindex: '0', role: 'group', 'aria-label': 'A statement to try' }, example)
      ),
      h(
        'details',
        { class: 'by-hand' },
        h('summary', {}, 'Use it with your own Postgres'),
        h(
          'p',
          { class: 'note' },
          'It takes Postgres 14 or newer with wal_level = logical. These commands read its tables and propose who gets ' +
            'which rows, make the publication (--print-sql only shows the SQL), say what is still missing, and serve ' +
            'your app. docs/quick-start.md tells each step.'
        ),
        h('pre', { id: 'own', tabindex: '0', role: 'group', 'aria-label': 'Commands for your own Postgres' }, OWN)
      )
    );
    void this.fetchAbout(users.left);
  }

  onView(side: Side, view: View): void {
    for (const { id, name } of view.lists) this.words.learn(id, name);
    for (const { id, title } of view.todos) this.words.learn(id, title ?? '');
    this.waiting.show(side, view.waiting);
    this.onBuckets(side, view);
  }

  /** The screen shows what a device has up to an op. */
  onBuckets(side: Side, view: Held): void {
    this.buckets.hold(side, view.buckets);
    afterPaint(() => this.story.drawn(side, view));
  }

  onOffline(side: Side, offline: boolean): void {
    this.story.network(side, offline);
  }

  onAsk(todo: Todo): void {
    this.explain({ table: 'todos', id: todo.id, title: todo.title ?? '' });
  }

  /** Show who gets a row, and why. */
  explain(row: RowName): void {
    void this.rules.explain(row);
    this.rules.element.scrollIntoView({ block: 'nearest', behavior: 'smooth' });
  }

  private async fetchAbout(user: User): Promise<void> {
    try {
      const { rules, rules_name, database } = await ask<About>(user, 'about');
      this.rules.setText(rules);
      this.rulesName.textContent = rules_name;
      this.database.textContent = database;
    } catch (error) {
      console.warn(error);
    }
  }
}

const part = (title: string, name: string, content: HTMLElement, ...beside: HTMLElement[]): HTMLElement =>
  h('section', { class: `part ${name}`, id: name }, h('h3', {}, title, ...beside), content);

/** Calls `then` when the browser has drawn what the page shows now. A page in the background draws nothing. */
function afterPaint(then: () => void): void {
  if (document.hidden) return then();
  requestAnimationFrame(() => {
    const { port1, port2 } = new MessageChannel();
    port1.onmessage = () => then();
    port2.postMessage(null);
  });
}
