// Command load has both ends of the gateway benchmark: stub replicas, and the clients. Each is one process on
// one core, and writes HTTP/1.1 by hand: net/http would cost more than the gateways that are measured.
//
//	load replica -listen ADDRESS[,ADDRESS…]
//	load rate|latency|streams|idle|complete -target HOST:PORT …
//
// A client prints one line of JSON with what it has seen.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"time"
)

func main() {
	if len(os.Args) < 2 {
		fail("name a command: replica, rate, latency, streams, idle or complete")
	}
	runtime.GOMAXPROCS(1)
	debug.SetGCPercent(2000) // a collection would add its milliseconds to the lag of streams
	command, flags := os.Args[1], flag.NewFlagSet(os.Args[1], flag.ExitOnError)
	if command == "replica" {
		listen := flags.String("listen", "", "addresses, with commas")
		check(flags.Parse(os.Args[2:]))
		serveReplicas(*listen)
		return
	}
	load := Load{}
	flags.StringVar(&load.target, "target", "", "the gateway's host:port")
	flags.StringVar(&load.model, "model", "", "the name in the body")
	flags.StringVar(&load.host, "host", "", "the Host; empty: the target")
	flags.StringVar(&load.key, "key", "", "a client's key; empty: none")
	flags.IntVar(&load.connections, "connections", 64, "clients, each with a connection of its own")
	flags.DurationVar(&load.duration, "duration", 5*time.Second, "how long to measure")
	flags.IntVar(&load.rate, "rate", 200, "requests a second (latency)")
	flags.IntVar(&load.tokens, "tokens", 100, "tokens of a stream (complete)")
	flags.IntVar(&load.total, "total", 1000, "requests in all (complete)")
	flags.BoolVar(&load.stream, "stream", true, "ask for streams (complete)")
	flags.IntVar(&load.intervalMs, "interval-ms", 50, "milliseconds between two tokens of a stream")
	check(flags.Parse(os.Args[2:]))
	measures := map[string]func(Load) any{
		"rate": measureRate, "latency": measureLatency, "streams": measureStreams,
		"idle": holdIdleStreams, "complete": countComplete,
	}
	measure, ok := measures[command]
	if !ok {
		fail("there is no command " + command)
	}
	line, err := json.Marshal(measure(load))
	check(err)
	fmt.Println(string(line))
}

func check(err error) {
	if err != nil {
		fail(err.Error())
	}
}

func fail(text string) {
	fmt.Fprintln(os.Stderr, "load: "+text)
	os.Exit(2)
}
