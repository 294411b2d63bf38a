package top

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
)

// Style is how a text stands out.
type Style int

// The styles.
const (
	Plain Style = iota
	Strong
	Faint
	Good
	Bad
)

// Span is a text with a style. It is fit for a terminal.
type Span struct {
	Text  string
	Style Style
}

// Line is what stands beside each other.
type Line []Span

// String returns the texts of a line.
func (l Line) String() string {
	var b strings.Builder
	for _, s := range l {
		b.WriteString(s.Text)
	}
	return strings.TrimRight(b.String(), " ")
}

// Visible returns a text with what a terminal might obey, and what is not UTF-8, in the way of Go's strings.
func Visible(text string) string {
	quoted := strconv.Quote(text)
	return strings.ReplaceAll(strings.ReplaceAll(quoted[1:len(quoted)-1], `\"`, `"`), `\\`, `\`)
}

// line returns a line of one text, whose arguments that are strings are made visible.
func line(style Style, format string, args ...any) Line {
	return Line{span(style, format, args...)}
}

func span(style Style, format string, args ...any) Span {
	for i, a := range args {
		if text, ok := a.(string); ok {
			args[i] = Visible(text)
		}
	}
	return Span{fmt.Sprintf(format, args...), style}
}

func bytesText(n int64) string { return humanize.IBytes(uint64(max(n, 0))) }

func countText(n int64) string { return humanize.Comma(n) }

func percentText(ratio *float64) string {
	if ratio == nil {
		return "-"
	}
	return fmt.Sprintf("%.1f%%", 100**ratio)
}

// ageText says how long ago something was.
func ageText(seconds float64) string {
	switch d := time.Duration(seconds * float64(time.Second)); {
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%.1fh", d.Hours())
	default:
		return fmt.Sprintf("%.1fd", d.Hours()/24)
	}
}

// valueText is a value of a series in its unit.
func valueText(v *float64, unit string) string {
	switch {
	case v == nil:
		return "-"
	case unit == "bytes/s":
		return bytesText(int64(*v)) + "/s"
	case unit == "bytes":
		return bytesText(int64(*v))
	case unit == "1/s":
		return humanize.CommafWithDigits(math.Round(*v), 0) + "/s"
	case unit == "s":
		return time.Duration(*v * float64(time.Second)).Round(10 * time.Nanosecond).Truncate(precision(*v)).String()
	case unit == "ratio":
		return fmt.Sprintf("%.1f%%", 100**v)
	}
	return humanize.CommafWithDigits(*v, 0)
}

// precision leaves three digits or so of a time.
func precision(seconds float64) time.Duration {
	unit := time.Duration(1)
	for time.Duration(seconds*float64(time.Second))/unit >= 1000 {
		unit *= 10
	}
	return unit
}

const blocks = "▁▂▃▄▅▆▇█"

// spark draws the last values of a series in so many columns, up to its largest; a gap is empty.
func spark(values []*float64, columns int) string {
	if columns <= 0 {
		return ""
	}
	if len(values) > columns {
		values = values[len(values)-columns:]
	}
	most := 0.0
	for _, v := range values {
		if v != nil {
			most = max(most, *v)
		}
	}
	levels := []rune(blocks)
	var b strings.Builder
	b.WriteString(strings.Repeat(" ", columns-len(values)))
	for _, v := range values {
		switch {
		case v == nil:
			b.WriteByte(' ')
		case most <= 0:
			b.WriteRune(levels[0])
		default:
			b.WriteRune(levels[min(int(max(*v, 0)/most*float64(len(levels))), len(levels)-1)])
		}
	}
	return b.String()
}
