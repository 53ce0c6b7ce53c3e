// One device: the stock Node SDK over one database file, driven over its pipes (see lines.mjs).
// The SDK's log goes to stderr.

import { PowerSyncDatabase } from '@powersync/node';
import { dirname, basename } from 'node:path';
import { BSON, deviceCommands, takingOnly } from './commands.mjs';
import { serve } from './lines.mjs';

const database = ({ path, schema, logger, transport }) =>
  new PowerSyncDatabase({
    schema,
    database: {
      dbFilename: basename(path),
      dbLocation: dirname(path),
      implementation: { type: 'node:sqlite' },
      readWorkerCount: 1
    },
    logger,
    remoteOptions: transport === 'bson' ? { customFetch: takingOnly(BSON, fetch) } : undefined
  });

const commands = deviceCommands({
  database,
  uploader: async (module) => (await import(module)).Connector,
  log: (text) => process.stderr.write(`${text}\n`)
});

serve(commands, { onEnd: commands.close });
