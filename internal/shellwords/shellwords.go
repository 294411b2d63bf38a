// Package shellwords reads command lines and small scripts as a shell would, but expands and runs
// nothing: with them engines are started, and configured.
package shellwords

import (
	"errors"
	"strings"
)

// Split splits a command line or a small script into words as a shell does, with
// quotes, backslashes and comments. It expands nothing.
func Split(text string) ([]string, error) {
	var words []string
	var word strings.Builder
	inWord := false
	end := func() {
		if inWord {
			words = append(words, word.String())
			word.Reset()
			inWord = false
		}
	}
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '\'':
			closing := strings.IndexByte(text[i+1:], '\'')
			if closing < 0 {
				return nil, errors.New("has an unclosed '")
			}
			word.WriteString(text[i+1 : i+1+closing])
			i += closing + 1
			inWord = true
		case c == '"':
			inWord = true
			for i++; ; i++ {
				if i >= len(text) {
					return nil, errors.New(`has an unclosed "`)
				}
				if text[i] == '"' {
					break
				}
				if text[i] == '\\' && i+1 < len(text) && strings.IndexByte("\"\\$`\n", text[i+1]) >= 0 {
					if i++; text[i] == '\n' {
						continue
					}
				}
				word.WriteByte(text[i])
			}
		case c == '\\' && i+1 < len(text):
			if i++; text[i] != '\n' {
				word.WriteByte(text[i])
				inWord = true
			}
		case c == '#' && !inWord:
			for i+1 < len(text) && text[i+1] != '\n' {
				i++
			}
		case strings.IndexByte(" \t\r\n;", c) >= 0:
			end()
		default:
			word.WriteByte(c)
			inWord = true
		}
	}
	end()
	return words, nil
}

// IsVariable reports whether a text is the name of a variable as engines write them.
func IsVariable(name string) bool {
	for i := range len(name) {
		if c := name[i]; c != '_' && (c < 'A' || c > 'Z') && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return name != ""
}
