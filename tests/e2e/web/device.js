// The page of one device: the stock web SDK, told what to do by `window.device(command, arguments)`.

import { PowerSyncDatabase } from '@powersync/web';
import { BSON, deviceCommands, takingOnly } from '../node/commands.mjs';
import { encode } from '../node/encode.mjs';

const database = ({ path, schema, logger, transport }) => {
  // The SDK takes no fetch of ours, and mostly connects in a worker that all tabs share.
  const inThisTab = transport === 'bson';
  if (inThisTab) window.fetch = takingOnly(BSON, window.fetch.bind(window));
  return new PowerSyncDatabase({
    schema,
    database: { dbFilename: path, ...(inThisTab ? { enableMultiTabs: false } : {}) },
    logger
  });
};

const commands = deviceCommands({ database, log: (text) => console.log(text) });

window.device = async (command, args) => JSON.parse(JSON.stringify((await commands[command](args)) ?? null, encode));
