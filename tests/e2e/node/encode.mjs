// Integers past 2^53 and blobs have no JSON form that Python would read back unchanged: a replacer for JSON.stringify.
export const encode = (key, value) => {
  if (typeof value === 'bigint')
    return Number.isSafeInteger(Number(value)) ? Number(value) : { integer: value.toString() };
  if (value instanceof Uint8Array)
    return { blob: Array.from(value, (byte) => byte.toString(16).padStart(2, '0')).join('') };
  if (typeof value === 'number' && !Number.isFinite(value)) return { real: String(value) };
  return value;
};
