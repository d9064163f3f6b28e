package main

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"strconv"
)

var errMalformed = errors.New("no HTTP message")

// message is a request, or an answer that is whole.
type message struct {
	first string
	head  []byte
	body  []byte
}

// readMessage reads a message with Content-Length, in chunks, or without a body.
func readMessage(reader *bufio.Reader) (message, error) {
	found, err := readHead(reader)
	if err != nil {
		return found, err
	}
	if isChunked(found.head) {
		for {
			piece, err := readChunk(reader)
			if err != nil {
				return found, err
			}
			if piece == nil {
				return found, nil
			}
			found.body = append(found.body, piece...)
		}
	}
	length, err := contentLength(found.head)
	if err != nil {
		return found, err
	}
	found.body = make([]byte, length)
	_, err = io.ReadFull(reader, found.body)
	return found, err
}

func readHead(reader *bufio.Reader) (message, error) {
	line, err := reader.ReadSlice('\n')
	if err != nil {
		return message{}, err
	}
	found := message{first: string(line)}
	for {
		line, err := reader.ReadSlice('\n')
		if err != nil {
			return found, err
		}
		if len(line) <= 2 {
			return found, nil
		}
		found.head = append(found.head, line...)
	}
}

// readChunk returns a chunk of a body, or nil at its end.
func readChunk(reader *bufio.Reader) ([]byte, error) {
	line, err := reader.ReadSlice('\n')
	if err != nil {
		return nil, err
	}
	size, err := strconv.ParseInt(string(bytes.TrimSpace(line)), 16, 32)
	if err != nil {
		return nil, err
	}
	piece := make([]byte, size+2)
	if _, err := io.ReadFull(reader, piece); err != nil {
		return nil, err
	}
	if size == 0 {
		return nil, nil
	}
	return piece[:size], nil
}

func isChunked(head []byte) bool {
	value, ok := header(head, "transfer-encoding")
	return ok && bytes.EqualFold(value, []byte("chunked"))
}

func contentLength(head []byte) (int, error) {
	value, ok := header(head, "content-length")
	if !ok {
		return 0, nil
	}
	length, err := strconv.Atoi(string(value))
	if err != nil || length < 0 || length > 1<<24 {
		return 0, errMalformed
	}
	return length, nil
}

// header returns the value of a header, whose name is given in small letters.
func header(head []byte, name string) ([]byte, bool) {
	for len(head) > 0 {
		end := bytes.IndexByte(head, '\n')
		if end < 0 {
			break
		}
		line := head[:end]
		head = head[end+1:]
		if len(line) > len(name) && line[len(name)] == ':' && bytes.EqualFold(line[:len(name)], []byte(name)) {
			return bytes.TrimSpace(line[len(name)+1:]), true
		}
	}
	return nil, false
}
