package main

import (
	"bufio"
	"bytes"
	"fmt"
	"math"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Load says what the clients do.
type Load struct {
	target, model, host, key      string
	connections, rate, intervalMs int
	tokens, total                 int
	duration                      time.Duration
	stream                        bool
}

const prompt = `"messages":[{"role":"system","content":"You are a helpful assistant that answers briefly and to the point."},{"role":"user","content":"What does the quick brown fox do, and why does the lazy dog not mind? Answer in one sentence, please."}]`

// request returns the bytes of a request.
func (l Load) request(isStream bool, tokens int) []byte {
	body := fmt.Sprintf(`{"model":%q,%s,"max_tokens":%d,"seed":%d,"stream":%t}`, l.model, prompt, tokens, l.intervalMs, isStream)
	host, key := l.host, ""
	if host == "" {
		host = l.target
	}
	if l.key != "" {
		key = "Authorization: Bearer " + l.key + "\r\n"
	}
	return []byte(fmt.Sprintf("POST /v1/chat/completions HTTP/1.1\r\nHost: %s\r\nUser-Agent: load\r\nAccept: */*\r\n%sContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", host, key, len(body), body))
}

func isOK(first string) bool { return strings.HasPrefix(first, "HTTP/1.1 200") }

// client is one connection.
type client struct {
	conn   net.Conn
	reader *bufio.Reader
}

func dial(target string) (*client, error) {
	conn, err := net.DialTimeout("tcp", target, 20*time.Second)
	if err != nil {
		return nil, err
	}
	return &client{conn, bufio.NewReaderSize(conn, 4096)}, nil
}

// ask sends a request and returns whether its whole answer is a 200.
func (c *client) ask(request []byte) (bool, error) {
	if _, err := c.conn.Write(request); err != nil {
		return false, err
	}
	answer, err := readMessage(c.reader)
	return err == nil && isOK(answer.first), err
}

// stream is what a client has seen of a stream.
type stream struct {
	tokens int
	isDone bool
	status string
}

// readStream reads a stream to its end, and calls onToken with the lag of each token.
func (c *client) readStream(request []byte, onToken func(now time.Time, lag time.Duration)) (stream, error) {
	found := stream{}
	if _, err := c.conn.Write(request); err != nil {
		return found, err
	}
	answer, err := readHead(c.reader)
	found.status = strings.TrimSpace(answer.first)
	if err != nil {
		return found, err
	}
	if !isOK(answer.first) || !isChunked(answer.head) {
		return found, fmt.Errorf("answered %s", found.status)
	}
	var rest []byte
	for {
		piece, err := readChunk(c.reader)
		if err != nil || piece == nil {
			return found, err
		}
		rest = append(rest, piece...)
		now := time.Now()
		for {
			end := bytes.IndexByte(rest, '\n')
			if end < 0 {
				break
			}
			found.note(rest[:end], now, onToken)
			rest = rest[end+1:]
		}
	}
}

func (s *stream) note(line []byte, now time.Time, onToken func(time.Time, time.Duration)) {
	if bytes.HasPrefix(line, []byte("data: [DONE]")) {
		s.isDone = true
		return
	}
	at := bytes.IndexByte(line, '@')
	if at < 0 || len(line) < at+20 {
		return
	}
	sent, err := strconv.ParseInt(string(line[at+1:at+20]), 10, 64)
	if err == nil {
		s.tokens++
		onToken(now, time.Duration(now.UnixNano()-sent))
	}
}

// milliseconds returns percentiles of durations, which it sorts.
func milliseconds(found []time.Duration) map[string]float64 {
	slices.Sort(found)
	result := map[string]float64{}
	for name, part := range map[string]float64{"p50": 0.5, "p99": 0.99, "max": 1} {
		if len(found) == 0 {
			continue
		}
		index := max(0, int(math.Ceil(part*float64(len(found))))-1)
		result[name] = float64(found[index].Nanoseconds()) / 1e6
	}
	return result
}
