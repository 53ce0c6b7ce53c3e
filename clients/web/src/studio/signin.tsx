// Signing in with a token of the service config.

import { useState } from 'preact/hooks';
import { type Session, signIn } from './api';
import { useAction } from './hooks';
import { Failure, Field } from './parts';

export function SignIn({ ended, enter }: { ended: boolean; enter: (session: Session) => void }) {
  const [token, setToken] = useState('');
  const [name, setName] = useState('');
  const action = useAction(async () => enter(await signIn(token.trim(), name.trim())));
  return (
    <main class="alone">
      <h1>Headwater studio</h1>
      {ended && <p role="status">Your session has ended. What you typed in the editor is kept.</p>}
      <form
        onSubmit={(event) => {
          event.preventDefault();
          void action.run();
        }}
      >
        <Field
          label="Token"
          secret
          value={token}
          change={setToken}
          hint="One of api.tokens in the service config"
          testid="token"
        />
        <Field
          label="Your name"
          value={name}
          change={setName}
          hint="Noted with what you change, unless the config names the token"
          testid="name"
        />
        <Failure error={action.error} />
        <button type="submit" class="primary" disabled={action.busy || !token.trim()} data-testid="sign-in">
          Sign in
        </button>
      </form>
    </main>
  );
}
