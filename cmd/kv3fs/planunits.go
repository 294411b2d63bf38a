package main

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/kv3fs/kv3fs/internal/advise/prefill"
)

// tokenCount is a number of tokens as people write it: 32768, 32Ki, 32k, 1Mi. All units
// are powers of 1024, as usual for contexts.
type tokenCount int

// UnmarshalText parses such a number.
func (c *tokenCount) UnmarshalText(text []byte) error {
	s, scale := strings.ToLower(string(text)), 1
	for unit, size := range map[string]int{"k": 1 << 10, "m": 1 << 20} {
		number, found := strings.CutSuffix(strings.TrimSuffix(s, "i"), unit)
		if found {
			s, scale = number, size
			break
		}
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 || n > maxContext/scale {
		return fmt.Errorf("%q is not a number of tokens up to %dMi; write 32768 or 32Ki", text, maxContext>>20)
	}
	*c = tokenCount(n * scale)
	return nil
}

// share is a share of the whole, 0.8 or 80%.
type share float64

// UnmarshalText parses a share.
func (s *share) UnmarshalText(text []byte) error {
	number, percent := strings.CutSuffix(string(text), "%")
	f, err := strconv.ParseFloat(number, 64)
	if percent {
		f /= 100
	}
	if err != nil || !(f >= 0 && f <= 1) {
		return fmt.Errorf("%q is not a share; write 0 to 1, or a percentage such as 80%%", text)
	}
	*s = share(f)
	return nil
}

func (s share) String() string {
	return strconv.FormatFloat(math.Round(float64(s)*1e4)/100, 'f', -1, 64) + "%"
}

// paramsCount is a number of parameters as people write it: 32.8B, 671M, 1T.
type paramsCount float64

// UnmarshalText parses such a number.
func (c *paramsCount) UnmarshalText(text []byte) error {
	s, scale := strings.ToLower(string(text)), 1.0
	if n := len(s); n > 0 {
		switch s[n-1] {
		case 'm':
			s, scale = s[:n-1], 1e6
		case 'b':
			s, scale = s[:n-1], 1e9
		case 't':
			s, scale = s[:n-1], 1e12
		}
	}
	f, err := strconv.ParseFloat(s, 64)
	f *= scale
	if err != nil || !(f >= 1e6 && f <= 1e15) { // 37 without a unit would mean 37B
		return fmt.Errorf("%q is not a number of parameters; write 32.8B or 600M", text)
	}
	*c = paramsCount(f)
	return nil
}

// bandwidth is a pipe with a name, or a rate: 40GiB/s, 12.5GB/s, 200Gbit/s.
type bandwidth prefill.Pipe

// UnmarshalText parses a pipe's name or a rate.
func (b *bandwidth) UnmarshalText(text []byte) error {
	s := string(text)
	amount, perSecond := strings.CutSuffix(s, "/s")
	if !perSecond {
		amount, perSecond = strings.CutSuffix(s, "ps")
	}
	if !perSecond {
		return b.lookup(s)
	}
	bits := 1.0
	switch {
	case strings.HasSuffix(amount, "bit"):
		amount, bits = strings.TrimSuffix(amount, "it"), 8
	case strings.HasSuffix(amount, "b"):
		return fmt.Errorf("%q may mean bits or bytes; write 400Gbit/s or 50GB/s", text)
	}
	var n byteSize
	if err := n.UnmarshalText([]byte(amount)); err != nil {
		return fmt.Errorf("%q is not a rate; write 40GiB/s, 12.5GB/s or 200Gbit/s", text)
	}
	*b = bandwidth{Name: s, BytesPerSecond: float64(n) / bits}
	return nil
}

// lookup finds a pipe by name, or several of the same: 4x100gbe.
func (b *bandwidth) lookup(s string) error {
	name, counts, err := splitCounts(s)
	if err != nil {
		return fmt.Errorf("%w; write 4x100gbe for four", err)
	}
	p, err := prefill.LookupPipe(name)
	if err != nil {
		return fmt.Errorf("%w; or write a rate, such as 40GiB/s", err)
	}
	switch len(counts) {
	case 0:
	case 1:
		p.BytesPerSecond *= float64(counts[0])
		p.Name = s
	default:
		return fmt.Errorf("%s has more than one number; write 4x100gbe for four", s)
	}
	*b = bandwidth(p)
	return nil
}

// String returns the pipe's name with its rate.
func (b bandwidth) String() string {
	if strings.Contains(b.Name, "/") {
		return b.Name
	}
	return fmt.Sprintf("%s (%.3g GB/s)", b.Name, b.BytesPerSecond/1e9)
}

// rateText writes a rate in powers of 1000, as is usual for networks and disks.
func rateText(bytesPerSecond float64) string {
	switch {
	case bytesPerSecond < 999.5e3:
		return threeDigits(bytesPerSecond/1e3) + " KB/s"
	case bytesPerSecond < 999.5e6:
		return threeDigits(bytesPerSecond/1e6) + " MB/s"
	}
	return threeDigits(bytesPerSecond/1e9) + " GB/s"
}
