// Plots: what happens now, and in the last day. Nothing is shown for times that nobody saw.

import { useEffect, useMemo, useRef, useState } from 'preact/hooks';
import './language';
import uPlot from 'uplot';
import 'uplot/dist/uPlot.min.css';
import { get } from '../api';
import { useDevices } from '../client';
import { useAnswer } from '../hooks';
import { Failure, Section } from '../parts';
import { clock, count, hour, size, span } from '../words';
import type { Status } from './status';

type Points = (number | null)[];

/** A colour of the style sheet as a canvas takes it: computed, and not `light-dark(…)`. */
function colour(element: HTMLElement, name: string): string {
  element.style.color = `var(${name})`;
  const found = getComputedStyle(element).color;
  element.style.color = '';
  return found;
}

/** Whether the person prefers dark colours, which a canvas has to be told. */
function useDark(): boolean {
  const query = useMemo(() => matchMedia('(prefers-color-scheme: dark)'), []);
  const [dark, setDark] = useState(query.matches);
  useEffect(() => {
    const look = () => setDark(query.matches);
    query.addEventListener('change', look);
    return () => query.removeEventListener('change', look);
  }, [query]);
  return dark;
}

const HEIGHT = 96;

/** Of what there is no half. */
const number = (value: number): string => count(value);
const WHOLE = [1, 2, 5].flatMap((each) => [0, 1, 2, 3, 4, 5].map((zeros) => each * 10 ** zeros)).sort((one, other) => one - other);

/** `seconds` is how much time is shown at least, which ends with the last point. */
function Plot(props: { title: string; times: number[]; points: Points; words: (value: number) => string; seconds: number }) {
  const element = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot>(undefined);
  const dark = useDark();
  const { words, seconds } = props;
  useEffect(() => {
    const box = element.current!;
    const [line, soft, grid] = ['--accent', '--soft', '--line'].map((name) => colour(box, name));
    const axis = { stroke: soft!, grid: { stroke: grid!, width: 1 }, ticks: { show: false }, font: '11px system-ui', gap: 4 };
    const made = new uPlot(
      {
        width: box.clientWidth,
        height: HEIGHT,
        legend: { show: false },
        cursor: { y: false, drag: { setScale: false } },
        scales: {
          x: { range: (_, low, high) => [Math.min(low, high - seconds), high] },
          y: { range: (_, low, high) => [Math.min(0, low ?? 0), Math.max(high ?? 0, 1) * 1.1] }
        },
        axes: [
          { ...axis, size: 20, values: (_, at) => at.map((each) => hour(each, seconds < 3600)), space: 90 },
          { ...axis, size: 62, values: (_, at) => at.map((each) => words(each)), space: 22, ...(words === number ? { incrs: WHOLE } : {}) }
        ],
        series: [{}, { stroke: line!, width: 1.5, points: { show: false }, spanGaps: false, fill: `color-mix(in srgb, ${line} 14%, transparent)` }]
      },
      [[], []],
      box
    );
    plot.current = made;
    const watch = new ResizeObserver(() => made.setSize({ width: box.clientWidth, height: HEIGHT }));
    watch.observe(box);
    return () => {
      watch.disconnect();
      made.destroy();
    };
  }, [dark, words, seconds]);
  useEffect(() => plot.current?.setData([props.times, props.points]), [props.times, props.points, dark, words, seconds]);
  const last = props.points.at(-1);
  const now = last === null || last === undefined ? 'not known' : words(last);
  return (
    <figure class="plot">
      <figcaption>
        {props.title} <b>{now}</b>
      </figcaption>
      <div ref={element} role="img" aria-label={`${props.title}: ${now}`} />
    </figure>
  );
}

const KEPT = 300;

interface Seen {
  times: number[];
  commits: Points;
  rows: Points;
  lag: Points;
  devices: Points;
  transactions: number;
  stored: number;
}

const whole = (value: number): string => count(Math.round(value * 10) / 10);

const sum = (status: Status, part: (source: Status['sources'][number]) => number): number =>
  status.sources.reduce((total, source) => total + part(source), 0);

const rate = (before: number, now: number, seconds: number): number | null =>
  now < before || seconds <= 0 ? null : (now - before) / seconds; // its process began again

function seen(before: Seen | undefined, status: Status, devices: number | undefined): Seen {
  const at = Date.now() / 1000;
  const transactions = sum(status, ({ totals }) => totals.transactions);
  const stored = sum(status, ({ totals }) => totals.rows);
  const lag = status.sources.some(({ lag_bytes }) => lag_bytes === null)
    ? null
    : Math.max(0, ...status.sources.map(({ lag_bytes }) => lag_bytes ?? 0));
  const add = (points: Points | undefined, point: number | null) => [...(points ?? []), point].slice(-KEPT);
  const since = before ? at - before.times.at(-1)! : 0;
  return {
    times: [...(before?.times ?? []), at].slice(-KEPT),
    commits: add(before?.commits, before ? rate(before.transactions, transactions, since) : null),
    rows: add(before?.rows, before ? rate(before.stored, stored, since) : null),
    lag: add(before?.lag, lag),
    devices: add(before?.devices, devices ?? null),
    transactions,
    stored
  };
}

/** What happened since the page was opened, from the status that it asks for every two seconds. */
export function Live({ status }: { status: Status }) {
  const devices = useDevices('', 0, 0, 4000);
  const [held, setHeld] = useState<Seen>();
  const present = useRef<number>(undefined);
  present.current = devices.value?.total;
  useEffect(() => setHeld((before) => seen(before, status, present.current)), [status]);
  if (!held) return null;
  return (
    <Section title="Now" beside="since this page was opened" testid="live">
      <div class="plots">
        <Plot title="Commits a second" times={held.times} points={held.commits} words={whole} seconds={120} />
        <Plot title="Row changes a second" times={held.times} points={held.rows} words={whole} seconds={120} />
        <Plot title="Lag" times={held.times} points={held.lag} words={size} seconds={120} />
        <Plot title="Devices" times={held.times} points={held.devices} words={number} seconds={120} />
      </div>
    </Section>
  );
}

interface Series {
  step: number;
  times: number[];
  series: Record<string, Points>;
  since: number;
}

const TITLES: Record<string, [string, (value: number) => string]> = {
  commits: ['Commits a minute', whole],
  rows: ['Row changes a minute', whole],
  devices: ['Devices', number],
  lag_bytes: ['Lag', size],
  lag_seconds: ['Lag in time', span]
};

/** The last 24 hours, as the service kept them. */
export function OneDay() {
  const { value, error } = useAnswer('series', (signal) => get<Series>('series', { hours: 24 }, signal), 60_000);
  return (
    <Section title="The last 24 hours" beside={value && <span>seen since {clock(value.since)}</span>} testid="day">
      <Failure error={error} />
      {value && value.times.length > 0 && (
        <div class="plots five">
          {Object.entries(TITLES).map(
            ([name, [title, words]]) =>
              value.series[name] && (
                <Plot key={name} title={title} times={value.times} points={value.series[name]} words={words} seconds={86_400} />
              )
          )}
        </div>
      )}
      {value && !value.times.length && <p class="none">Nothing is kept yet.</p>}
    </Section>
  );
}
