#!/bin/sh
# Answers of adit's and mihomo's name servers for each second of processor time, in interleaved rounds.
# Needs dnsperf and python3. Usage: bench/dns.sh ADIT MIHOMO [ROUNDS]
set -eu
adit=$1 mihomo=$2 rounds=${3:-3}
folder=$(mktemp -d)
cd "$folder"
pids=
trap 'kill $pids 2>/dev/null; rm -rf "$folder"' EXIT

cat > upstream.py <<'END'
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(("127.0.0.1", 5399))
while True:
    q, peer = s.recvfrom(2000)
    end = 12
    while q[end]:
        end += q[end] + 1
    answer = b"\xc0\x0c\0\1\0\1\0\0\x0e\x10\0\4\xc0\0\2\1"
    s.sendto(q[:2] + b"\x81\x80\0\1\0\1\0\0\0\0" + q[12:end + 5] + answer, peer)
END
python3 upstream.py & pids=$!
seq 1 200 | sed 's/.*/n&.bench.test A/' > queries

# NAME PORT MODE PROGRAM...
begin() {
    name=$1 port=$2 mode=$3
    shift 3
    mkdir "$name"
    cat > "$name/config.yaml" <<END
mixed-port: 0
log-level: error
ipv6: false
dns:
  enable: true
  listen: 127.0.0.1:$port
  ipv6: false
  enhanced-mode: $mode
  fake-ip-range: 198.18.0.1/16
  nameserver: ["127.0.0.1:5399"]
  default-nameserver: ["127.0.0.1:5399"]
rules: ["MATCH,DIRECT"]
END
    "$@" -d "$name" -f "$name/config.yaml" > "$name/log" 2>&1 &
    echo $! > "$name/pid"
    pids="$pids $!"
}
begin adit-fake 5301 fake-ip "$adit" mihomo
begin mihomo-fake 5302 fake-ip "$mihomo"
begin adit-cached 5303 redir-host "$adit" mihomo
begin mihomo-cached 5304 redir-host "$mihomo"
sleep 3

ticks() { awk '{ print $14 + $15 }' "/proc/$(cat "$1/pid")/stat"; }
measure() {
    before=$(ticks "$1")
    dnsperf -s 127.0.0.1 -p "$2" -d queries -l 4 -c 4 -q 50 > "$1/out" 2>&1
    after=$(ticks "$1")
    awk -v name="$1" -v ticks=$((after - before)) -v hz="$(getconf CLK_TCK)" \
        '/Queries completed/ { printf "%-14s %8d answers %8.0f for each second of processor time\n", name, $3, $3 * hz / (ticks ? ticks : 1) }' "$1/out"
}
for _ in $(seq "$rounds"); do
    measure adit-fake 5301
    measure mihomo-fake 5302
    measure adit-cached 5303
    measure mihomo-cached 5304
done
