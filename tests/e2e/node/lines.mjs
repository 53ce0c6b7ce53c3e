// A process that is driven over its pipes: one JSON request a line in, one JSON answer a line out.
//
//   in   {"id": 1, "command": "query", "sql": "select 1 as one"}
//   out  {"id": 1, "result": [{"one": 1}]}   or   {"id": 1, "error": "no such table: x"}
//
// Requests run side by side; an answer carries the id of its request. The process ends with its stdin.

import { createInterface } from 'node:readline';
import { encode } from './encode.mjs';

const errorText = (error) =>
  error instanceof Error ? [error.message, error.cause?.message].filter(Boolean).join(': ') : String(error);

export function serve(commands, { onEnd }) {
  const answer = (message) => process.stdout.write(JSON.stringify(message, encode) + '\n');

  const run = async ({ id, command, ...args }) => {
    try {
      if (!Object.hasOwn(commands, command)) throw new Error(`unknown command ${command}`);
      answer({ id, result: (await commands[command](args)) ?? null });
    } catch (error) {
      answer({ id, error: errorText(error) });
    }
  };

  createInterface({ input: process.stdin })
    .on('line', (line) => run(JSON.parse(line)))
    .on('close', async () => {
      try {
        await onEnd();
      } finally {
        process.exit(0);
      }
    });
}
