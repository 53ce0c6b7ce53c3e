// Numbers, sizes and times as text.

const UNITS = ['B', 'kB', 'MB', 'GB', 'TB', 'PB'];

export const count = (value: number): string => value.toLocaleString('en');

/** `3 rows`, `1 row`. Without `plural` an s is added. */
export const counted = (value: number, noun: string, plural = `${noun}s`): string =>
  `${count(value)} ${value === 1 ? noun : plural}`;

export function size(bytes: number): string {
  let [value, unit] = [bytes, 0];
  while (value >= 1000 && unit < UNITS.length - 1) [value, unit] = [value / 1000, unit + 1];
  return `${unit && value < 100 ? value.toFixed(1) : count(Math.round(value))} ${UNITS[unit]}`;
}

export function span(seconds: number): string {
  if (seconds < 1) return `${Math.max(0, Math.round(seconds * 1000))} ms`;
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (seconds < 90 * 60) return `${Math.round(seconds / 60)} min`;
  if (seconds < 36 * 3600) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86_400)} days`;
}

/** A remark of the service as a sentence of its own. */
export const sentence = (text: string): string =>
  text && `${text[0]!.toUpperCase()}${text.slice(1)}${/[.!?:]$/.test(text) ? '' : '.'}`;

const pad = (value: number): string => String(value).padStart(2, '0');

/** A time on this machine's clock: `11:04:31` today, `2026-11-03 11:04` on another day. */
export function clock(seconds: number): string {
  const at = new Date(seconds * 1000);
  const day = `${at.getFullYear()}-${pad(at.getMonth() + 1)}-${pad(at.getDate())}`;
  const time = `${pad(at.getHours())}:${pad(at.getMinutes())}`;
  return at.toDateString() === new Date().toDateString() ? `${time}:${pad(at.getSeconds())}` : `${day} ${time}`;
}

/** The time of the day alone. */
export function hour(seconds: number, whole: boolean): string {
  const at = new Date(seconds * 1000);
  const minutes = `${pad(at.getHours())}:${pad(at.getMinutes())}`;
  return whole ? `${minutes}:${pad(at.getSeconds())}` : minutes;
}

export const now = (): number => Date.now() / 1000;

export function value(given: unknown): string {
  if (given === null || given === undefined) return 'NULL';
  return typeof given === 'string' ? given : JSON.stringify(given);
}
