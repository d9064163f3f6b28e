package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	usageEvent  = ": millrace-usage "
	usageEvery  = 250 * time.Millisecond
	drainHeader = "X-Millrace-Draining: true\r\n"
)

// replica is one stub replica: it answers at an address, until it is told to drain.
type replica struct {
	listener net.Listener
	draining atomic.Bool
	inFlight atomic.Int64
	served   atomic.Int64
	mutex    sync.Mutex
	idle     map[net.Conn]bool
}

// serveReplicas answers at each address. Lines on stdin control it: "add ADDRESS", "drain ADDRESS", which
// answers "drained ADDRESS" once its last request has ended, and "served ADDRESS".
func serveReplicas(addresses string) {
	replicas := map[string]*replica{}
	add := func(address string) {
		listener, err := net.Listen("tcp", address)
		check(err)
		one := &replica{listener: listener, idle: map[net.Conn]bool{}}
		replicas[address] = one
		go one.accept()
	}
	for _, address := range strings.Split(addresses, ",") {
		if address != "" {
			add(address)
		}
	}
	fmt.Println("ready")
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		command, address, _ := strings.Cut(lines.Text(), " ")
		switch command {
		case "add":
			add(address)
			fmt.Println("added " + address)
		case "drain":
			go replicas[address].drain(address)
		case "served":
			fmt.Println("served", address, replicas[address].served.Load())
		}
	}
}

func (r *replica) accept() {
	for {
		conn, err := r.listener.Accept()
		if err != nil {
			return
		}
		go r.serve(conn)
	}
}

// drain refuses new requests, waits for the last one, then closes.
func (r *replica) drain(address string) {
	r.draining.Store(true)
	time.Sleep(time.Second)
	for r.inFlight.Load() > 0 {
		time.Sleep(10 * time.Millisecond)
	}
	r.listener.Close()
	r.mutex.Lock()
	for conn := range r.idle {
		conn.Close()
	}
	r.mutex.Unlock()
	fmt.Println("drained " + address)
}

func (r *replica) setIdle(conn net.Conn, idle bool) {
	r.mutex.Lock()
	if idle {
		r.idle[conn] = true
	} else {
		delete(r.idle, conn)
	}
	r.mutex.Unlock()
}

func (r *replica) serve(conn net.Conn) {
	defer conn.Close()
	defer r.setIdle(conn, false)
	reader := bufio.NewReaderSize(conn, 8192)
	for {
		r.setIdle(conn, true)
		request, err := readMessage(reader)
		if err != nil {
			return
		}
		r.setIdle(conn, false)
		r.inFlight.Add(1)
		err = r.answer(conn, request)
		r.inFlight.Add(-1)
		r.served.Add(1)
		if err != nil {
			return
		}
	}
}

// asked has the fields of a body that a stub knows: `seed` is the milliseconds between two tokens.
type asked struct {
	MaxTokens           int `json:"max_tokens"`
	MaxCompletionTokens int `json:"max_completion_tokens"` // what SGLang's router makes of it
	Seed                int `json:"seed"`
}

func (r *replica) answer(conn net.Conn, request message) error {
	if r.draining.Load() {
		return write(conn, "503 Service Unavailable", drainHeader, `{"error":{"message":"draining"}}`)
	}
	path := request.first
	switch {
	case strings.Contains(path, "/chat/completions"):
		isReporting := bytes.Contains(bytes.ToLower(request.head), []byte("x-millrace-report: usage"))
		if !bytes.Contains(request.body, []byte(`"stream":true`)) && !bytes.Contains(request.body, []byte(`"stream": true`)) {
			return writeWhole(conn, isReporting)
		}
		var body asked
		if err := json.Unmarshal(request.body, &body); err != nil {
			return write(conn, "400 Bad Request", "", `{"error":{"message":"no JSON"}}`)
		}
		body.MaxTokens = max(body.MaxTokens, body.MaxCompletionTokens)
		return writeStream(conn, body, isReporting)
	case strings.Contains(path, " /load"):
		return write(conn, "200 OK", "", fmt.Sprintf(`{"server_load":%d,"waiting":0,"running":%d,"max_sequences":100000,"kv_usage":0.1}`, r.inFlight.Load(), r.inFlight.Load()))
	case strings.Contains(path, " /v1/models"):
		return write(conn, "200 OK", "", `{"object":"list","data":[{"id":"chat","object":"model","created":1,"owned_by":"stub"}]}`)
	}
	return write(conn, "200 OK", "", `{"status":"ok","model_path":"chat"}`)
}

const wholeAnswer = `{"id":"chatcmpl-1","object":"chat.completion","created":1767225600,"model":"chat","choices":[{"index":0,"message":{"role":"assistant","content":"The quick brown fox jumps over the lazy dog, and then over the other one, too."},"finish_reason":"stop"}],"usage":{"prompt_tokens":20,"completion_tokens":20,"total_tokens":40}}`

func writeWhole(conn net.Conn, isReporting bool) error {
	headers := ""
	if isReporting {
		headers = "X-Millrace-Usage: 20 0 20\r\nX-Millrace-Load: 0 1 256 0.1\r\n"
	}
	return write(conn, "200 OK", headers, wholeAnswer)
}

func write(conn net.Conn, status, headers, body string) error {
	_, err := conn.Write([]byte("HTTP/1.1 " + status + "\r\nContent-Type: application/json\r\n" + headers + "Content-Length: " + strconv.Itoa(len(body)) + "\r\n\r\n" + body))
	return err
}

// writeStream sends tokens at even intervals. Each has the time of its writing, in nanoseconds.
func writeStream(conn net.Conn, body asked, isReporting bool) error {
	head := "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n"
	if isReporting {
		head += "X-Millrace-Load: 0 1 256 0.1\r\n"
	}
	if _, err := conn.Write([]byte(head + "\r\n")); err != nil {
		return err
	}
	interval, next := time.Duration(body.Seed)*time.Millisecond, time.Now()
	reported := time.Time{}
	for number := 1; number <= body.MaxTokens; number++ {
		now := time.Now()
		text := appendToken(nil, now)
		if isReporting && now.Sub(reported) >= usageEvery {
			reported = now
			text = appendChunk(text, fmt.Sprintf("%s20 0 %d\n\n", usageEvent, number))
		}
		if _, err := conn.Write(text); err != nil {
			return err
		}
		if number < body.MaxTokens {
			next = next.Add(interval)
			time.Sleep(time.Until(next))
		}
	}
	end := appendChunk(nil, `data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1767225600,"model":"chat","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}`+"\n\n")
	end = appendChunk(end, "data: [DONE]\n\n")
	if isReporting {
		end = appendChunk(end, fmt.Sprintf("%s20 0 %d\n\n", usageEvent, body.MaxTokens))
	}
	_, err := conn.Write(append(end, "0\r\n\r\n"...))
	return err
}

func appendToken(buffer []byte, now time.Time) []byte {
	return appendChunk(buffer, `data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1767225600,"model":"chat","choices":[{"index":0,"delta":{"content":"@`+strconv.FormatInt(now.UnixNano(), 10)+` "},"finish_reason":null}]}`+"\n\n")
}

func appendChunk(buffer []byte, text string) []byte {
	buffer = strconv.AppendInt(buffer, int64(len(text)), 16)
	return append(append(append(buffer, "\r\n"...), text...), "\r\n"...)
}
