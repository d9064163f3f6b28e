package main

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// measureRate sends requests one after the other on each connection.
func measureRate(load Load) any {
	request := load.request(false, 20)
	var done, failed atomic.Int64
	var group sync.WaitGroup
	begin := time.Now()
	warm, end := begin.Add(500*time.Millisecond), begin.Add(500*time.Millisecond+load.duration)
	for range load.connections {
		group.Go(func() {
			one, err := dial(load.target)
			for time.Now().Before(end) {
				if err != nil {
					failed.Add(1)
					time.Sleep(10 * time.Millisecond)
					one, err = dial(load.target)
					continue
				}
				var ok bool
				ok, err = one.ask(request)
				if now := time.Now(); now.Before(warm) || now.After(end) {
					continue
				}
				if ok {
					done.Add(1)
				} else {
					failed.Add(1)
				}
			}
		})
	}
	group.Wait()
	return map[string]any{"requests_per_second": float64(done.Load()) / load.duration.Seconds(), "failed": failed.Load()}
}

// measureLatency starts requests at even times, whether the ones before have ended or not.
func measureLatency(load Load) any {
	request := load.request(false, 20)
	var mutex sync.Mutex
	var found []time.Duration
	var failed atomic.Int64
	turns := make(chan time.Time, 100_000)
	var group sync.WaitGroup
	for range load.connections {
		group.Go(func() {
			one, err := dial(load.target)
			for due := range turns {
				ok := false
				if err == nil {
					ok, err = one.ask(request)
				}
				if err != nil {
					one, err = dial(load.target)
				}
				if !ok {
					failed.Add(1)
					continue
				}
				mutex.Lock()
				found = append(found, time.Since(due))
				mutex.Unlock()
			}
		})
	}
	interval := time.Second / time.Duration(load.rate)
	next := time.Now().Add(100 * time.Millisecond)
	for end := next.Add(load.duration); next.Before(end); next = next.Add(interval) {
		time.Sleep(time.Until(next))
		turns <- time.Now()
	}
	close(turns)
	group.Wait()
	skipped := min(len(found), load.rate/2)
	return map[string]any{"milliseconds": milliseconds(found[skipped:]), "failed": failed.Load()}
}

// measureStreams opens streams, waits until all have begun, and notes each token's lag for a while.
func measureStreams(load Load) any {
	request := load.request(true, 10_000) // longer than any measurement, and within the gateway's limits
	var mutex sync.Mutex
	var lags []time.Duration
	var begun, ended atomic.Int64
	var measuring atomic.Bool
	failures := sync.Map{}
	for number := range load.connections {
		go func() {
			spread := rand.Int64N(int64(load.intervalMs) * 1_000_000)
			time.Sleep(time.Duration(number)*time.Millisecond + time.Duration(spread))
			one, err := dial(load.target)
			if err == nil {
				isFirst := true
				_, err = one.readStream(request, func(_ time.Time, lag time.Duration) {
					if isFirst {
						isFirst = false
						begun.Add(1)
					}
					if measuring.Load() {
						mutex.Lock()
						lags = append(lags, lag)
						mutex.Unlock()
					}
				})
			}
			ended.Add(1)
			failures.Store(fmt.Sprint(err), true)
		}()
	}
	for deadline := time.Now().Add(60 * time.Second); begun.Load()+ended.Load() < int64(load.connections) && time.Now().Before(deadline); {
		time.Sleep(10 * time.Millisecond)
	}
	time.Sleep(time.Second)
	fmt.Println("measuring")
	measuring.Store(true)
	time.Sleep(load.duration)
	measuring.Store(false)
	mutex.Lock()
	defer mutex.Unlock()
	expected := float64(load.connections) * load.duration.Seconds() * 1000 / float64(load.intervalMs)
	reasons := []string{}
	failures.Range(func(reason, _ any) bool { reasons = append(reasons, reason.(string)); return true })
	return map[string]any{
		"milliseconds": milliseconds(lags), "delivered": float64(len(lags)) / expected, "begun": begun.Load(),
		"ended": ended.Load(), "reasons": reasons,
	}
}

// holdIdleStreams opens streams that send one token, says so, and holds them until stdin ends.
func holdIdleStreams(load Load) any {
	load.intervalMs = 3_600_000
	request := load.request(true, 2)
	var begun, ended atomic.Int64
	for range load.connections {
		time.Sleep(time.Millisecond)
		go func() {
			if one, err := dial(load.target); err == nil {
				_, _ = one.readStream(request, func(time.Time, time.Duration) { begun.Add(1) })
			}
			ended.Add(1)
		}()
	}
	for deadline := time.Now().Add(60 * time.Second); begun.Load()+ended.Load() < int64(load.connections) && time.Now().Before(deadline); {
		time.Sleep(10 * time.Millisecond)
	}
	fmt.Println("open", begun.Load())
	bufio.NewScanner(os.Stdin).Scan()
	return map[string]any{"begun": begun.Load(), "ended": ended.Load()}
}

// countComplete sends `total` requests, `connections` at once, and counts the answers that are complete.
func countComplete(load Load) any {
	request := load.request(load.stream, load.tokens)
	var complete, truncated, refused, failed atomic.Int64
	reasons := sync.Map{}
	turns := make(chan int, load.total)
	for number := range load.total {
		turns <- number
	}
	close(turns)
	begin := time.Now()
	var group sync.WaitGroup
	for number := range load.connections {
		group.Go(func() {
			time.Sleep(time.Duration(number) * time.Millisecond)
			for range turns {
				counter, reason := attempt(load, request)
				map[string]*atomic.Int64{"complete": &complete, "truncated": &truncated, "refused": &refused, "failed": &failed}[counter].Add(1)
				if counter != "complete" {
					reasons.Store(reason, true)
				}
			}
		})
	}
	group.Wait()
	said := []string{}
	reasons.Range(func(reason, _ any) bool { said = append(said, reason.(string)); return len(said) < 5 })
	return map[string]any{
		"complete": complete.Load(), "truncated": truncated.Load(), "refused": refused.Load(),
		"failed": failed.Load(), "reasons": said, "seconds": time.Since(begin).Seconds(),
	}
}

// attempt makes one request on a connection of its own. It returns which count it belongs to, and why.
func attempt(load Load, request []byte) (string, string) {
	one, err := dial(load.target)
	if err != nil {
		return "failed", err.Error()
	}
	defer one.conn.Close()
	if !load.stream {
		ok, err := one.ask(request)
		if err != nil || !ok {
			return "failed", fmt.Sprint("no 200: ", err)
		}
		return "complete", ""
	}
	found, err := one.readStream(request, func(time.Time, time.Duration) {})
	switch {
	case err == nil && found.isDone && found.tokens == load.tokens:
		return "complete", ""
	case found.tokens > 0:
		return "truncated", fmt.Sprint(found, err)
	case found.status != "" && !isOK(found.status):
		return "refused", found.status
	}
	return "failed", fmt.Sprint(found, err)
}
