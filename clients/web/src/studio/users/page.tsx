// Who is connected, what a user is sent and why, and whether a device has one row.

import { useMemo, useState } from 'preact/hooks';
import { ClientFields, NOBODY, parse, type Typed } from '../client';
import { DeviceList } from './devices';
import { Revocations } from './revocations';
import { RowQuestion } from './row';
import { UserAnswer } from './user';
import { Section } from '../parts';

export default function UsersPage() {
  const [typed, setTyped] = useState<Typed>(NOBODY);
  const [asked, setAsked] = useState<Typed>();
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
        <RowQuestion client={client} />
      </div>
      <div class="main">
        {explained && <UserAnswer client={explained} />}
        <DeviceList explain={(user) => explain({ ...NOBODY, user })} />
        <Revocations />
      </div>
    </div>
  );
}
