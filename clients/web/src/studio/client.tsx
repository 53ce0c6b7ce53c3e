// The client that a question is about: a user, and what the device would send and the token would claim.

import { useMemo, useState } from 'preact/hooks';
import { get } from './api';
import { type Answer, usePage, useTyped } from './hooks';
import { Field } from './parts';

export interface Subscription {
  stream: string;
  parameters?: Record<string, unknown> | null;
}

/** A client as the admin API takes it. */
export interface Client {
  user: string;
  claims?: Record<string, unknown>;
  parameters?: Record<string, unknown>;
  subscriptions?: Subscription[];
  include_defaults?: boolean;
}

/** A client as it is typed. */
export interface Typed {
  user: string;
  claims: string;
  parameters: string;
  subscriptions: string;
  defaults: boolean;
}

export const NOBODY: Typed = { user: '', claims: '', parameters: '', subscriptions: '', defaults: true };

export interface Device {
  process: number;
  user: string;
  client: string | null;
  user_agent: string | null;
  app_metadata: Record<string, string>;
  connected: number;
  token_expires: number;
  operations: number;
  bytes: number;
  buckets: number;
  checkpoint: number;
}

let chosen = NOBODY;

/** The client as it is typed, which all pages of the studio go on with: who looks at a user then changes the rules. */
export function useClient(): [Typed, (typed: Typed) => void] {
  const [typed, setTyped] = useState(chosen);
  return [typed, (next) => setTyped((chosen = next))];
}

/** Some of the connected devices: `found` have what was looked for, of `total`. */
export interface Devices {
  clients: Device[];
  total: number;
  found: number;
}

const SUGGESTED = 20;
const LONGEST = 200; // characters that may be looked for

/** Connected devices whose user or client has a text, as many as a page of a table shows. */
export function useDevices(find: string, offset: number, limit: number, every?: number): Answer<Devices & { place: number }> {
  const query = { find: find.slice(0, LONGEST), offset, limit };
  return usePage(`clients ${find} ${limit}`, offset, (signal) => get<Devices>('clients', query, signal), every);
}

const isObject = (value: unknown): value is Record<string, unknown> =>
  typeof value === 'object' && value !== null && !Array.isArray(value);

type Parsed<T> = { value?: T; wrong?: string };

function json<T>(text: string, form: string, fits: (value: unknown) => value is T): Parsed<T> {
  if (!text.trim()) return {};
  try {
    const value: unknown = JSON.parse(text);
    return fits(value) ? { value } : { wrong: `Write ${form}` };
  } catch {
    return { wrong: `This is no JSON. Write ${form}` };
  }
}

const isSubscriptions = (value: unknown): value is Subscription[] =>
  Array.isArray(value) && value.every((each) => isObject(each) && typeof each['stream'] === 'string');

/** The typed client, or what is wrong with it by field. */
export function parse(typed: Typed): { client?: Client; wrong: Partial<Record<keyof Typed, string>> } {
  const claims = json(typed.claims, 'an object, as {"team": "t1"}', isObject);
  const parameters = json(typed.parameters, 'an object, as {"region": "eu"}', isObject);
  const subscriptions = json(typed.subscriptions, 'a list, as [{"stream": "list", "parameters": {"id": "l1"}}]', isSubscriptions);
  const wrong: Partial<Record<keyof Typed, string>> = {};
  if (claims.wrong) wrong.claims = claims.wrong;
  if (parameters.wrong) wrong.parameters = parameters.wrong;
  if (subscriptions.wrong) wrong.subscriptions = subscriptions.wrong;
  if (Object.keys(wrong).length || !typed.user) return { wrong };
  return {
    wrong,
    client: {
      user: typed.user,
      ...(claims.value ? { claims: claims.value } : {}),
      ...(parameters.value ? { parameters: parameters.value } : {}),
      ...(subscriptions.value ? { subscriptions: subscriptions.value } : {}),
      ...(typed.defaults ? {} : { include_defaults: false })
    }
  };
}

const text = (value: unknown): string => (value === undefined || value === null ? '' : JSON.stringify(value));

export const typedOf = (client: Client): Typed => ({
  user: client.user,
  claims: text(client.claims),
  parameters: text(client.parameters),
  subscriptions: client.subscriptions?.length ? text(client.subscriptions) : '',
  defaults: client.include_defaults ?? true
});

export function ClientFields({ typed, change }: { typed: Typed; change: (typed: Typed) => void }) {
  const users = usersOf(useDevices(useTyped(typed.user), 0, SUGGESTED).value);
  const set = (part: Partial<Typed>) => change({ ...typed, ...part });
  const { wrong } = useMemo(() => parse(typed), [typed]);
  const more = Boolean(typed.claims || typed.parameters || typed.subscriptions || !typed.defaults);
  const [open, setOpen] = useState(more);
  return (
    <div class="client">
      <Field label="User" value={typed.user} change={(user) => set({ user })} list={users} testid="client-user" />
      <details open={open || more} onToggle={(event) => setOpen(event.currentTarget.open)}>
        <summary>Claims, parameters, subscriptions</summary>
        <Field label="Claims of the token" lines={2} value={typed.claims} change={(claims) => set({ claims })} wrong={wrong.claims} hint="JSON; connected devices don't tell theirs" testid="client-claims" />
        <Field label="Parameters of the connection" lines={2} value={typed.parameters} change={(parameters) => set({ parameters })} wrong={wrong.parameters} hint="JSON" testid="client-parameters" />
        <Field label="Subscriptions" lines={2} value={typed.subscriptions} change={(subscriptions) => set({ subscriptions })} wrong={wrong.subscriptions} hint='JSON, as [{"stream": "list", "parameters": {"id": "l1"}}]' testid="client-subscriptions" />
        <label class="tick">
          <input type="checkbox" checked={typed.defaults} onChange={(event) => set({ defaults: event.currentTarget.checked })} />
          Also streams with auto_subscribe
        </label>
      </details>
    </div>
  );
}

const usersOf = (devices: Devices | undefined): string[] => [
  ...new Set(devices?.clients.map(({ user }) => user) ?? [])
];
