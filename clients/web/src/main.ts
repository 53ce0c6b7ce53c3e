import './style.css';
import { h } from './dom';
import { Panel } from './panel';
import { fetchUsers } from './server';

const panels = document.querySelector<HTMLElement>('#panels')!;

try {
  const users = await fetchUsers();
  const [left, right] = users;
  if (!left || !right) throw new Error('the demo needs two users');
  panels.append(new Panel('left', left, right, users).element, new Panel('right', right, left, users).element);
} catch (error) {
  const reason = error instanceof Error ? error.message : String(error);
  panels.append(
    h('p', { class: 'failure', role: 'alert', 'data-testid': 'failure' }, `The demo could not start: ${reason}`)
  );
}
