package main

import (
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
	"github.com/goccy/go-yaml"

	"github.com/kv3fs/kv3fs/internal/spelling"
)

// yamlFile resolves flags from a configuration file: one mapping whose keys are flag
// names without the leading dashes. The command line and the environment override it.
type yamlFile struct {
	name   string
	values map[string]any
}

func yamlConfig(r io.Reader) (kong.Resolver, error) {
	name := "configuration"
	if f, ok := r.(interface{ Name() string }); ok {
		name = f.Name()
	}
	y := &yamlFile{name: name, values: map[string]any{}}
	d := yaml.NewDecoder(r)
	if err := d.Decode(&y.values); err != nil && err != io.EOF {
		return nil, fmt.Errorf("%s: not a YAML mapping of flag names to values: %w", name, err)
	}
	if err := d.Decode(new(any)); err != io.EOF {
		return nil, fmt.Errorf("%s: more than one YAML document: only the first would have an effect; remove the line --- or ... between them", name)
	}
	return y, nil
}

// Validate rejects keys that are not flags of the given command. A key of another
// command would have no effect: "serve" with "token-file" would serve without a token.
func (y *yamlFile) Validate(app *kong.Application) error {
	command := app.Node
	known := configKeys(command)
	for {
		i := slices.IndexFunc(command.Children, func(n *kong.Node) bool { return n.Active })
		if i < 0 {
			break
		}
		command = command.Children[i]
		known = append(known, configKeys(command)...)
	}
	slices.Sort(known)
	for _, key := range slices.Sorted(maps.Keys(y.values)) {
		if slices.Contains(known, key) {
			continue
		}
		if near := spelling.Nearest(key, known, 1); len(near) == 1 {
			return fmt.Errorf("%s: unknown key %q: %s has %s", y.name, key, command.Path(), near[0])
		}
		return fmt.Errorf("%s: unknown key %q; the keys are the names of the flags of %s: %s", y.name, key, command.Path(), strings.Join(known, ", "))
	}
	return nil
}

// configKeys returns the flags of a command that a configuration file can set.
func configKeys(command *kong.Node) []string {
	var keys []string
	for _, flag := range command.Flags {
		if !slices.Contains([]string{"help", "version", "config"}, flag.Name) {
			keys = append(keys, flag.Name)
		}
	}
	return keys
}

// Resolve returns the file's value for a flag.
func (y *yamlFile) Resolve(_ *kong.Context, _ *kong.Path, flag *kong.Flag) (any, error) {
	v, ok := y.values[flag.Name]
	if !ok || slices.ContainsFunc(flag.Envs, func(env string) bool { _, set := os.LookupEnv(env); return set }) {
		return nil, nil
	}
	switch v.(type) {
	case nil:
		return nil, fmt.Errorf("%s: key %q has no value; give it one, or remove it for the default", y.name, flag.Name)
	case map[string]any, []any:
		return nil, fmt.Errorf("%s: key %q must have a single value", y.name, flag.Name)
	}
	return fmt.Sprint(v), nil
}
