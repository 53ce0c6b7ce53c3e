// What the docs leave to the reader's app.
declare function fetchTokenFromYourLogin(): Promise<string>;
declare function sendToYourBackend(writes: readonly unknown[]): Promise<void>;
