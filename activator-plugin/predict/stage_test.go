package predict

import (
	"net/http"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"
)

func TestStage(t *testing.T) {
	s := newServer(t, http.StatusNotFound, noModel)
	clk := clocktesting.NewFakeClock(time.Now())
	c := newClient(t, s.URL, clk)
	for _, step := range []struct {
		name   string
		status int
		body   string
		after  time.Duration
		want   Stage
	}{
		{"unknown to the predictor", 404, noModel, 0, Unseen},
		{"profiled", 200, answerJSON(t, profilingAnswer()), 2 * time.Second, Learning},
		{"with a model", 200, answerJSON(t, exampleAnswer()), 2 * time.Second, Learned},
		{"with the table of a predictor that is down", 503, "", refreshAfter, Learned},
		{"with one that is too old", 503, "", 2 * dropAfter, Unseen},
	} {
		s.say(step.status, step.body)
		clk.Step(step.after)
		ask(c, 1)
		asked := s.asked.Load()
		if got := c.Stage(name); got != step.want {
			t.Errorf("the stage of a function %s is %d, want %d", step.name, got, step.want)
		}
		if s.asked.Load() != asked {
			t.Errorf("the stage of a function %s is asked for", step.name)
		}
	}
}
