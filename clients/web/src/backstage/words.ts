// Words for people instead of ids: who a user is, and which list a bucket is about.

import type { User } from '../server';

const BUCKET = /^([^[]*?)(?:\.[0-9a-f]+)?\[(.*)\]$/;
const UUID = /"?[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"?/g;

export interface BucketWords {
  stream: string;
  /** The values that its rows have in common; empty when there are none. */
  about: string;
}

export class Words {
  private readonly names = new Map<string, string>();

  constructor(users: User[]) {
    for (const { id, name } of users) this.names.set(id, name);
  }

  /** Remember a row's name. */
  learn(id: string, name: string): void {
    this.names.set(id, name);
  }

  name(id: string): string {
    return this.names.get(id) ?? `${id.slice(0, 8)}…`;
  }

  bucket(name: string): BucketWords {
    const found = BUCKET.exec(name);
    if (!found) return { stream: name, about: '' };
    let values: unknown[] = [];
    try {
      values = JSON.parse(`[${found[2]}]`) as unknown[];
    } catch {
      // a name of another form is shown as it is
    }
    return { stream: found[1] ?? name, about: values.map((value) => this.name(String(value))).join(', ') };
  }

  /** The text with names for ids, as far as they are known. */
  inText(text: string): string {
    return text.replace(UUID, (id) => {
      const known = this.names.get(id.replaceAll('"', ''));
      return known === undefined ? id : `“${known}”`;
    });
  }
}
