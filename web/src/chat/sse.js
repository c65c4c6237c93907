// SPDX-License-Identifier: Apache-2.0
// Server-sent events out of pieces of text that may end anywhere. Returns a function: piece -> list of the data of the
// events that became complete. Comments and other fields are skipped; a line may end with LF, CRLF or CR.
export function sseParser() {
  let rest = '', data = [];
  return piece => {
    const events = [];
    rest += piece;
    let at = 0;
    for (;;) {
      let end = at;
      while (end < rest.length && rest[end] !== '\n' && rest[end] !== '\r') end++;
      // A CR at the very end may be the first half of CRLF.
      if (end >= rest.length || (rest[end] === '\r' && end + 1 === rest.length)) break;
      const line = rest.slice(at, end);
      at = end + (rest[end] === '\r' && rest[end + 1] === '\n' ? 2 : 1);
      if (line === '') {
        if (data.length) events.push(data.join('\n'));
        data = [];
      } else if (line.startsWith('data:')) {
        data.push(line.slice(line[5] === ' ' ? 6 : 5));
      }
    }
    rest = rest.slice(at);
    return events;
  };
}
