#!/bin/sh
# After a removal: configuration, keys and counters stay.
case "${1:-}" in
  upgrade|failed-upgrade|abort-*|disappear|1) exit 0 ;;
esac
[ ! -d /run/systemd/system ] || systemctl daemon-reload || true
for folder in /etc/adit /var/lib/adit; do
  [ ! -d "$folder" ] || [ -z "$(ls -A "$folder" 2>/dev/null)" ] || echo "adit: kept: $folder"
done
exit 0
