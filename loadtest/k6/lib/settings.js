// Reads settings from the environment, and rejects invalid ones. docs/loadtest.md
// lists the variables.

export function text(name, fallback) {
  const value = __ENV[name] || fallback;
  if (value === undefined) {
    throw new Error(`${name} is not set: pass it to k6 with --env ${name}=…; docs/loadtest.md says what it must be`);
  }
  return value;
}

export function number(name, fallback, low, high) {
  const value = Number(text(name, fallback));
  if (!(value >= low && value <= high)) {
    throw new Error(`${name} is "${__ENV[name]}"; it must be a number from ${low} to ${high}`);
  }
  return value;
}

export function integer(name, fallback, low, high) {
  const value = number(name, fallback, low, high);
  if (!Number.isInteger(value)) {
    throw new Error(`${name} is "${__ENV[name]}"; it must be a whole number from ${low} to ${high}`);
  }
  return value;
}

// milliseconds reads a duration such as 90s, 30m or 2h.
export function milliseconds(name, fallback) {
  const value = text(name, fallback);
  const [, count, unit] = /^(\d+)(s|m|h)$/.exec(value) || [];
  if (!(count > 0)) {
    throw new Error(`${name} is "${value}"; it must be a duration such as 90s, 30m or 2h`);
  }
  return count * { s: 1000, m: 60000, h: 3600000 }[unit];
}

// path reads a file name. Relative names count from the folder in which k6 was
// started, as a person expects, and not from the script, as k6 would take them.
export function path(name) {
  const value = text(name);
  return value.startsWith('/') || !__ENV.PWD ? value : `${__ENV.PWD}/${value}`;
}

// target returns a lookup from function name to URL, and to Host header if the
// function needs one.
export function target() {
  const gateway = text('GATEWAY').replace(/\/+$/, '');
  if (!/^https?:\/\/[^/]/.test(gateway)) {
    throw new Error(
      `GATEWAY is "${gateway}"; it must be a URL such as http://10.0.0.7, or http://{function}.default.example.com`,
    );
  }
  let hosts = {};
  if (__ENV.HOSTS) {
    try {
      hosts = JSON.parse(__ENV.HOSTS);
    } catch (e) {
      throw new Error(`HOSTS is not JSON (${e}); it must be an object that maps functions to Host headers, such as {"uploader": "uploader.default.example.com"}`);
    }
  }
  return (name) => {
    const host = hosts[name] || (__ENV.HOST_HEADER || '').replaceAll('{function}', name);
    if (!host && __ENV.HOSTS) {
      throw new Error(`HOSTS has no Host header for function ${name}, and HOST_HEADER is not set; HOSTS has ${Object.keys(hosts).join(', ')}`);
    }
    return { url: `${gateway.replaceAll('{function}', name)}/`, host };
  };
}
