// A version that is being processed: how far it is, and stopping it; and the last one that failed.

import { post } from '../api';
import { useMayEdit } from '../hooks';
import { Ago, Confirmed, Mark } from '../parts';
import { Bar } from '../service/source';
import type { Status, Version } from '../service/status';

export function Processing({ status, last, changed }: { status: Status | undefined; last: Version | undefined; changed: () => void }) {
  const mayEdit = useMayEdit();
  const coming = last?.state === 'processing' ? last : undefined;
  const failed = last?.state === 'failed' ? last : undefined;
  if (failed) {
    return (
      <div class="finding bad" data-testid="failed-version">
        <div>
          Version {failed.id} is not served: {failed.note ?? 'it failed'}. Devices keep the version that they have. <span class="soft"><Ago at={failed.stopped ?? failed.created} /></span>
        </div>
      </div>
    );
  }
  if (!coming) return null;
  return (
    <div class="finding" role="status" data-testid="processing">
      <div>
        <Mark tone="busy">Version {coming.id} is being processed.</Mark> Devices keep what they have until all its rows are
        there.
        {coming.note && <span class="remedy">{coming.note}</span>}
        {status?.sources
          .filter(({ work }) => work)
          .map(({ source, work, done }) => (
            <div key={source}>
              {source}: {work}
              {done && <Bar done={done} />}
            </div>
          ))}
      </div>
      {mayEdit && (
        <Confirmed
          label="Cancel this deploy…"
          title={`Cancel version ${coming.id}`}
          question="What was built for it is removed. Devices keep the version that they have."
          act={async () => {
            await post('deploy/cancel', { id: coming.id });
            changed();
          }}
          testid="cancel-deploy"
        />
      )}
    </div>
  );
}
