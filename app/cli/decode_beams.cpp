#include "app/cli/decode_beams.h"

#include "app/base/termination.h"
#include "app/cli/json_head.h"
#include "app/cli/output.h"
#include "engine/base/error.h"
#include "engine/base/json_text.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <utility>

namespace keyhole {

BeamTexts search_beams(const LoadedModel& loaded, RunSpec spec, const BeamSettings& settings) {
    if (spec.follow)
        fail(ErrorCode::wrong_use,
             "--follow feeds all lanes one text, and --beams has several; leave one out");
    spec.n_top = 0;
    spec.requested.scores = settings.scores == BeamScores::shared;
    const std::vector<LaneSpec> lanes = spec.lanes;
    const int n_generate = spec.n_generate;
    const TerminationGuard guard;
    Progress progress(fmt::format("{} beams", settings.n_beams), 1);
    const auto report = [&](double done) {
        check_termination();
        progress.update(done);
        return true;
    };
    const PromptedLanes run(loaded.model, *loaded.backend, std::move(spec));
    BeamTexts found;
    found.n_prompt = run.context().n_prompt();
    for (const LaneSpec& lane : lanes)
        found.lanes.push_back(format_effective_spec(lane, found.n_prompt, n_generate));
    found.texts = run.texts(settings, {}, report);
    return found;
}

void print_beams(const LoadedModel& loaded, const BeamTexts& found, const BeamSettings& settings) {
    print_out("{}, {}\nprompt of {} tokens; {}\n", printable_text(loaded.model->path().string()),
              loaded.backend_text, found.n_prompt, beams_text(settings));
    for (std::size_t i = 0; i < found.lanes.size(); ++i) {
        const OwnText& text = found.texts[i];
        const auto n = static_cast<double>(std::max<std::size_t>(text.tokens.size(), 1));
        print_out("\nlane {}  {}\n{}\n  {} tokens, {:.3f} nats/token, score {:.4f}{}\n", i, found.lanes[i],
                  printable_text(text.text, true), text.tokens.size(), text.nats / n, text.score,
                  text.complete ? "; the text ended" : "");
    }
}

nlohmann::json beams_json(const LoadedModel& loaded, const BeamTexts& found) {
    nlohmann::json json = json_head(*loaded.model, loaded.backend->name());
    json["context"] = loaded.model->config().n_ctx;
    json["prompt_tokens"] = found.n_prompt;
    for (std::size_t i = 0; i < found.lanes.size(); ++i)
        json["lanes"].push_back({{"spec", found.lanes[i]},
                                 {"tokens", found.texts[i].tokens},
                                 {"text", found.texts[i].text},
                                 {"nats", found.texts[i].nats},
                                 {"score", found.texts[i].score},
                                 {"complete", found.texts[i].complete}});
    return json;
}

}  // namespace keyhole
