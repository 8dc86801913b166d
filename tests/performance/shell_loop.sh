#!/bin/bash
# A sweep as it was done before: for each configuration rewrite the unit, restart it, look at /v1/models every INTERVAL seconds, at most
# ROUNDS times, run the client, append a line. It stands beside ours in `make bench`; its mistakes are what is measured, so leave them.
#
#   shell_loop.sh UNIT PORT INTERVAL ROUNDS RESULTS COMMAND CLIENT... <CONFIGURATIONS
#
# COMMAND starts a server; a line of CONFIGURATIONS has the words that are put behind it. CLIENT measures. A line of RESULTS:
# configuration, tokens a second, file of the client.
unit=$1 port=$2 interval=$3 rounds=$4 results=$5 command=$6
shift 6
file=/etc/systemd/system/$unit
number=0

while read -r words; do
  number=$((number + 1))
  sed -i "s|^ExecStart=.*|ExecStart=$command $words|" "$file"
  systemctl daemon-reload
  systemctl restart "$unit"

  state=timeout
  for ((round = 0; round < rounds; round++)); do
    if systemctl is-failed --quiet "$unit"; then
      state=failed
      break
    fi
    if curl -s "http://127.0.0.1:$port/v1/models" | grep -q '"id"'; then
      state=READY
      break
    fi
    sleep "$interval"
  done
  echo "$(date +%T) $words: $state after $round rounds"
  [ "$state" = READY ] || continue

  speed=$("$@" --output-file "$results.$number.json" </dev/null 2>>"$results.log" | awk -F: '/^Output token throughput/ {print $2 + 0}')
  echo "$words|$speed|$results.$number.json" >>"$results"
done
