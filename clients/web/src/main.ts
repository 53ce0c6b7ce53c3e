import './style.css';
import './backstage/style.css';
import { Backstage } from './backstage/backstage';
import { h } from './dom';
import { Panel } from './panel';
import { Plays } from './play';
import { fetchUsers } from './server';

const panels = document.querySelector<HTMLElement>('#panels')!;

try {
  const users = await fetchUsers();
  const [ada, ben] = users;
  if (!ada || !ben) throw new Error('the demo needs two users');
  const plays = new Plays(() => ({ left, right }));
  const backstage = new Backstage({ left: ada, right: ben }, users, plays.element);
  const left: Panel = new Panel('left', ada, ben, users, backstage);
  const right: Panel = new Panel('right', ben, ada, users, backstage);
  panels.append(left.element, right.element, backstage.element);
} catch (error) {
  const reason = error instanceof Error ? error.message : String(error);
  panels.append(
    h('p', { class: 'failure', role: 'alert', 'data-testid': 'failure' }, `The demo could not start: ${reason}`)
  );
}
