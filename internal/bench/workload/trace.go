package workload

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"time"
)

// TokensPerBlock is the number of tokens for one id of a trace; the last block of a prompt
// may hold fewer.
const TokensPerBlock = 512

// maxLineBytes bounds a line of a trace. A prompt of a million tokens has 2,000
// ids, which are 40 KiB of digits.
const maxLineBytes = 4 << 20

// Request is one line of a trace.
type Request struct {
	Arrival      time.Duration // since the start of the trace
	InputTokens  int
	OutputTokens int
	// Blocks has one id for each TokensPerBlock tokens of the prompt. Ids are
	// chained: equal ids mean that the prompts are equal up to there. The slice
	// belongs to the reader and is overwritten by the next Read.
	Blocks []uint64
}

// HitTokens returns how many of the prompt's tokens its first n blocks hold.
func (r Request) HitTokens(n int) int { return min(n*TokensPerBlock, r.InputTokens) }

// Reader reads a trace, one request at a time.
//
// It is strict: a line that it does not understand is an error that names the line and
// says what to do, because a replay of half a trace measures something else. Unknown fields and empty
// lines are ignored.
type Reader struct {
	name       string
	r          *bufio.Reader
	line       int
	buf        []byte
	blocksOnly bool

	last   time.Duration
	lastAt int        // line of last
	raw    rawRequest // its ids are the memory of Request.Blocks
}

// rawRequest has pointers where an absent field differs from zero.
type rawRequest struct {
	Timestamp    *float64     `json:"timestamp"`
	InputLength  *json.Number `json:"input_length"`
	OutputLength *json.Number `json:"output_length"`
	HashIDs      idList       `json:"hash_ids"`
}

// idList parses a list of ids itself, because encoding/json would accept null as an id.
type idList struct {
	ids   []uint64
	given bool
}

// UnmarshalJSON appends the ids of a JSON array to l.
func (l *idList) UnmarshalJSON(b []byte) error {
	if b[0] != '[' {
		return fmt.Errorf("hash_ids is %.20s; it must be a list of ids", b)
	}
	l.given = true
	list := bytes.TrimSpace(b[1 : len(b)-1])
	for len(list) > 0 {
		item, rest, _ := bytes.Cut(list, []byte(","))
		item = bytes.TrimSpace(item)
		id, err := strconv.ParseUint(string(item), 10, 64)
		if err != nil {
			return fmt.Errorf("hash_ids[%d] is %.30s; an id must be a whole number, not negative and below 2^64", len(l.ids), item)
		}
		l.ids = append(l.ids, id)
		list = bytes.TrimSpace(rest)
	}
	return nil
}

// NewReader returns a Reader of a trace; errors call it name.
func NewReader(r io.Reader, name string) *Reader {
	return &Reader{name: name, r: bufio.NewReaderSize(r, 64<<10)}
}

// NewBlockReader returns a Reader that reads only times and ids, of blocks of any size, for
// uses that do not depend on tokens: lengths need neither fit nor exist.
func NewBlockReader(r io.Reader, name string) *Reader {
	t := NewReader(r, name)
	t.blocksOnly = true
	return t
}

// Name returns the name of the trace in errors.
func (t *Reader) Name() string { return t.name }

// Read returns the next request, or io.EOF after the last one.
func (t *Reader) Read() (Request, error) {
	for {
		line, err := t.nextLine()
		if err != nil {
			return Request{}, err
		}
		if len(line) != 0 {
			return t.parse(line)
		}
	}
}

// fail returns an error about the current line.
func (t *Reader) fail(format string, args ...any) error {
	return fmt.Errorf("%s:%d: %w", t.name, t.line, fmt.Errorf(format, args...))
}

// nextLine returns the next line without surrounding blanks.
func (t *Reader) nextLine() ([]byte, error) {
	t.buf = t.buf[:0]
	t.line++
	for {
		part, err := t.r.ReadSlice('\n')
		t.buf = append(t.buf, part...)
		switch {
		case len(t.buf) > maxLineBytes:
			return nil, t.fail("line is longer than %d MiB; a trace has one JSON object a line, is this one a JSON array or no trace at all?", maxLineBytes>>20)
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case errors.Is(err, io.EOF) && len(t.buf) == 0:
			return nil, io.EOF
		case err != nil && !errors.Is(err, io.EOF):
			return nil, t.fail("%w", err)
		}
		return bytes.TrimSpace(t.buf), nil
	}
}

func (t *Reader) parse(line []byte) (Request, error) {
	t.raw = rawRequest{HashIDs: idList{ids: t.raw.HashIDs.ids[:0]}}
	if line[0] != '{' {
		return Request{}, t.fail("line starts with %q; a trace has one JSON object a line, such as %s", line[:1], example)
	}
	if err := json.Unmarshal(line, &t.raw); err != nil {
		return Request{}, t.fail("%s", explainJSON(err))
	}
	raw, ids := &t.raw, t.raw.HashIDs.ids
	if raw.Timestamp == nil {
		return Request{}, t.fail(`no field "timestamp": the arrival in milliseconds since the start`)
	}
	arrival, err := t.arrival(*raw.Timestamp)
	if err != nil {
		return Request{}, err
	}
	if t.blocksOnly {
		if !raw.HashIDs.given {
			return Request{}, t.fail(`no field "hash_ids": the ids of the prompt's blocks`)
		}
		return Request{Arrival: arrival, Blocks: ids}, nil
	}
	input, err := t.tokens("input_length", raw.InputLength)
	if err != nil {
		return Request{}, err
	}
	output, err := t.tokens("output_length", raw.OutputLength)
	if err != nil {
		return Request{}, err
	}
	if len(ids) == 0 && input > 0 {
		return Request{}, t.fail(`no ids in "hash_ids": one is needed for every %d tokens of the prompt`, TokensPerBlock)
	}
	if want := (input + TokensPerBlock - 1) / TokensPerBlock; len(ids) != want {
		return Request{}, t.fail("%d hash_ids for an input_length of %d; at %d tokens a block there must be %d (for another block size, scale input_length by %d/size)",
			len(ids), input, TokensPerBlock, want, TokensPerBlock)
	}
	return Request{Arrival: arrival, InputTokens: input, OutputTokens: output, Blocks: ids}, nil
}

const example = `{"timestamp": 0, "input_length": 700, "output_length": 20, "hash_ids": [0, 1]}`

// tokens checks a count of tokens.
func (t *Reader) tokens(field string, n *json.Number) (int, error) {
	if n == nil {
		return 0, t.fail("no field %q: a number of tokens", field)
	}
	v, err := n.Int64()
	switch {
	case err != nil:
		return 0, t.fail("%s is %s; it must be a whole number of tokens", field, *n)
	case v < 0:
		return 0, t.fail("%s is %d; it must not be negative", field, v)
	case v > math.MaxInt32:
		return 0, t.fail("%s is %d; no prompt is that long, is the line damaged?", field, v)
	}
	return int(v), nil
}

// arrival checks a timestamp, which must not go back.
func (t *Reader) arrival(ms float64) (time.Duration, error) {
	switch {
	case ms < 0:
		return 0, t.fail("timestamp is %v; it counts milliseconds since the start and must not be negative", ms)
	case ms > 1e12: // 31 years
		return 0, t.fail("timestamp is %v; it counts milliseconds since the start of the trace, not since 1970", ms)
	}
	arrival := time.Duration(ms * float64(time.Millisecond))
	if arrival < t.last {
		return 0, t.fail("timestamp %v comes before that of line %d; sort the trace by timestamp", ms, t.lastAt)
	}
	t.last, t.lastAt = arrival, t.line
	return arrival, nil
}

// explainJSON rewrites an error of encoding/json in the terms of a trace.
func explainJSON(err error) string {
	var mismatch *json.UnmarshalTypeError
	var syntax *json.SyntaxError
	switch {
	case errors.As(err, &mismatch):
		return fmt.Sprintf("%s is a %s; it must be a number", mismatch.Field, mismatch.Value)
	case errors.As(err, &syntax):
		return fmt.Sprintf("no JSON object: %v at byte %d of the line; is the file cut off or damaged?", err, syntax.Offset)
	}
	return err.Error()
}

// Survey is what one pass over a trace reveals.
type Survey struct {
	Requests       int
	Tokens         int64 // of prompts
	Blocks         int64 // ids of all requests together
	DistinctBlocks int
	Duration       time.Duration
	// HitTokens and HitBlocks are what an unlimited cache would serve.
	HitTokens, HitBlocks int64
}

// TakeSurvey reads a trace to its end, or its first limit requests if limit is
// positive.
func TakeSurvey(t *Reader, limit int) (Survey, error) {
	var s Survey
	seen := map[uint64]struct{}{}
	for limit <= 0 || s.Requests < limit {
		r, err := t.Read()
		if err == io.EOF {
			break
		}
		if err != nil {
			return s, err
		}
		hit := 0
		for i, id := range r.Blocks {
			if _, ok := seen[id]; ok && hit == i {
				hit++
			}
			seen[id] = struct{}{}
		}
		s.Requests++
		s.Tokens += int64(r.InputTokens)
		s.Blocks += int64(len(r.Blocks))
		s.HitBlocks += int64(hit)
		s.HitTokens += int64(r.HitTokens(hit))
		s.Duration = r.Arrival
	}
	s.DistinctBlocks = len(seen)
	return s, nil
}
