package manual

import (
	"fmt"
	"strings"

	"github.com/goccy/go-yaml"
)

// openAPI is what APIPage reads of a description in OpenAPI.
type openAPI struct {
	Info       struct{ Description string }
	Paths      map[string]map[string]operation
	Components struct {
		Responses map[string]struct{ Description string }
		Schemas   map[string]schema
	}
}

type operation struct {
	Summary     string
	Parameters  []parameter
	RequestBody *body `yaml:"requestBody"`
	Responses   map[string]body
}

type body struct {
	Content map[string]struct{ Schema schema }
}

type parameter struct {
	Name, Description string
	Schema            schema
}

type schema struct {
	Ref         string `yaml:"$ref"`
	Description string
	Type        any // a name, or several
	Format      string
	Enum        []string
	Default     any
	Minimum     any
	Maximum     any
	Items       *schema
	AnyOf       []schema `yaml:"anyOf"`
	Properties  map[string]schema
	Required    []string
}

// APIPage returns docs/reference/api.md for a description in OpenAPI.
func APIPage(description []byte) (string, error) {
	var doc openAPI
	var order struct { // as it was written
		Paths      yaml.MapSlice
		Components struct{ Schemas yaml.MapSlice }
	}
	for _, into := range []any{&doc, &order} {
		if err := yaml.Unmarshal(description, into); err != nil {
			return "", fmt.Errorf("the description of the API: %w", err)
		}
	}
	var b strings.Builder
	b.WriteString("# API\n\n" + generated)
	markdown(&b, doc.Info.Description)
	b.WriteString("Paths are below `/api/v1`. [errors.md](errors.md) has what is answered otherwise, and `/api/v1/openapi.yaml` all of this for programs. An answer may have `not_utf8`: " + cell(doc.Components.Schemas["NotUTF8"].Description) + "\n\n")
	b.WriteString("```\ncurl -s http://127.0.0.1:9180/api/v1/status\n```\n\n| path | what it does | parameters | answer |\n|---|---|---|---|\n")
	for _, item := range order.Paths {
		path := fmt.Sprint(item.Key)
		for _, method := range []string{"get", "put", "post", "delete"} {
			op, ok := doc.Paths[path][method]
			if !ok {
				continue
			}
			var parameters []string
			if op.RequestBody != nil {
				parameters = append(parameters, "body: "+op.RequestBody.text())
			}
			for _, p := range op.Parameters {
				parameters = append(parameters, fmt.Sprintf("`%s` (%s): %s", p.Name, p.Schema.text(), cell(p.Description)))
			}
			fmt.Fprintf(&b, "| `%s %s` | %s | %s | %s |\n", strings.ToUpper(method), path, cell(op.Summary), strings.Join(parameters, "<br>"), op.Responses["200"].text())
		}
	}
	for _, item := range order.Components.Schemas {
		name := fmt.Sprint(item.Key)
		if s := doc.Components.Schemas[name]; s.Properties != nil {
			fmt.Fprintf(&b, "\n## %s\n\n%s\n\n| field | type | meaning |\n|---|---|---|\n", name, cell(s.Description))
			for _, field := range s.Required {
				p := s.Properties[field]
				fmt.Fprintf(&b, "| `%s` | %s | %s |\n", field, p.text(), cell(p.Description))
			}
		} else if s.Enum != nil {
			fmt.Fprintf(&b, "\n## %s\n\n%s\n", name, cell(s.Description))
		}
	}
	return b.String(), nil
}

// FailureOf returns what a description in OpenAPI says of answers that are errors.
func FailureOf(description []byte) (string, error) {
	var doc openAPI
	if err := yaml.Unmarshal(description, &doc); err != nil {
		return "", err
	}
	return strings.Join(strings.Fields(doc.Components.Responses["Failure"].Description), " "), nil
}

// text names what a body is, with a link where that is a schema.
func (b body) text() string {
	for media, is := range b.Content { // there is one
		if is.Schema.Ref == "" {
			return codeCell(media)
		}
		return is.Schema.text()
	}
	return ""
}

// text names the type of a schema.
func (s schema) text() string {
	if name := s.Ref[strings.LastIndex(s.Ref, "/")+1:]; name != "" {
		return "[" + name + "](#" + anchor(name) + ")"
	}
	var all []string
	for _, one := range s.AnyOf {
		all = append(all, one.text())
	}
	switch {
	case s.Enum != nil:
		for _, value := range s.Enum {
			all = append(all, codeCell(value))
		}
	case s.Items != nil:
		all = append(all, "list of "+s.Items.text())
	case s.Format == "date-time":
		all = append(all, "time")
	case s.Type == nil:
	default:
		if names, ok := s.Type.([]any); ok {
			for _, name := range names {
				all = append(all, fmt.Sprint(name))
			}
		} else {
			all = append(all, fmt.Sprint(s.Type))
		}
	}
	text := strings.Join(all, " or ")
	if s.Minimum != nil && s.Maximum != nil {
		text += fmt.Sprintf(", %v to %v", s.Minimum, s.Maximum)
	}
	if s.Default != nil {
		text += fmt.Sprintf(", default `%v`", s.Default)
	}
	return text
}
