// Who is connected, what a user is sent and why, and whether a device has one row.

import { useMemo, useState } from 'preact/hooks';
import { ClientFields, NOBODY, parse, type Typed, useClient } from '../client';
import { DeviceList } from './devices';
import { Revocations } from './revocations';
import { type RowAnswer, RowQuestion, Verdict } from './row';
import { UserAnswer } from './user';
import { Section } from '../parts';

export default function UsersPage() {
  const [typed, setTyped] = useClient();
  const [asked, setAsked] = useState<Typed>();
  const [row, setRow] = useState<RowAnswer>();
  const { client } = useMemo(() => parse(typed), [typed]);
  const explained = useMemo(() => (asked ? parse(asked).client : undefined), [asked]);
  const explain = (next: Typed) => {
    setTyped(next);
    setAsked({ ...next });
  };
  return (
    <div class="columns">
      <div class="side">
        <Section title="A user">
          <form
            onSubmit={(event) => {
              event.preventDefault();
              if (client) explain(typed);
            }}
          >
            <ClientFields typed={typed} change={setTyped} />
            <button type="submit" class="primary" disabled={!client} data-testid="explain-user">
              What is this user sent?
            </button>
          </form>
        </Section>
        <RowQuestion client={client} answer={setRow} />
      </div>
      <div class="main">
        {row && <Verdict found={row} />}
        {explained ? (
          <UserAnswer client={explained} />
        ) : (
          <p class="none">
            Name a user, or choose a connected one below, to see what the user's devices are sent and why. With a table and
            an id you learn why a row is there, or is not.
          </p>
        )}
        <DeviceList explain={(user) => explain({ ...NOBODY, user })} />
        <Revocations />
      </div>
    </div>
  );
}
