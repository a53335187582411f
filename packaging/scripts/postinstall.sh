#!/bin/sh
# After an installation or an upgrade. It starts nothing and restarts nothing: a restart would cut connections.
set -e
if ! grep -q '^adit:' /etc/passwd; then
  if command -v systemd-sysusers >/dev/null 2>&1; then
    systemd-sysusers /usr/lib/sysusers.d/adit.conf
  elif command -v useradd >/dev/null 2>&1; then
    useradd --system --user-group --no-create-home --home-dir /var/lib/adit --shell /usr/sbin/nologin adit
  elif command -v adduser >/dev/null 2>&1 && command -v addgroup >/dev/null 2>&1; then
    addgroup -S adit 2>/dev/null || true
    adduser -S -D -H -h /var/lib/adit -s /sbin/nologin -G adit adit
  fi
fi
# OpenWrt has no common way to make a system user: the service runs as root there. Elsewhere services may enter the folder;
# `adit up` gives it to them, with its file.
if grep -q '^adit:' /etc/passwd; then
  chgrp adit /etc/adit
fi
if [ -d /run/systemd/system ]; then
  systemctl daemon-reload || true
  if systemctl is-active --quiet 'adit*.service'; then
    echo 'adit: the running service still is the program of before: systemctl restart adit, when it suits'
  fi
fi
[ -e /etc/adit/adit.toml ] || echo 'adit: nothing was started; `adit up` makes a server, `adit migrate` moves an existing one'
exit 0
