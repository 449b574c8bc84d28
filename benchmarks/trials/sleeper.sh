# Writes when it starts and when it ends into the file $1; sleeps $2 seconds in between. Bash, because it starts in a
# few milliseconds and knows the time without starting anything.
echo "start $EPOCHREALTIME" >> "$1"
sleep "$2"
echo "end $EPOCHREALTIME" >> "$1"
