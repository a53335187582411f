#!/bin/sh
# Before a removal: services stop, and files that `adit up` has written go. An upgrade stops nothing.
case "${1:-}" in
  upgrade|deconfigure|failed-upgrade|1) exit 0 ;;
esac
if [ -d /run/systemd/system ]; then
  systemctl disable --now adit.service 2>/dev/null || true
  for unit in $(systemctl list-units --all --plain --no-legend 'adit@*.service' 2>/dev/null | cut -d' ' -f1); do
    systemctl disable --now "$unit" 2>/dev/null || true
  done
elif [ -x /etc/init.d/adit ]; then
  /etc/init.d/adit stop >/dev/null 2>&1 || true
  /etc/init.d/adit disable >/dev/null 2>&1 || true
fi
/usr/bin/adit service uninstall >/dev/null 2>&1 || true
exit 0
