#include "app/cli/bench_run.h"

#include "app/cli/output.h"
#include "engine/base/error.h"
#include "engine/base/resource_use.h"

#include <optional>

namespace keyhole {

void bench_prompts(const BenchRun& options) {
    if (options.scores || options.instrument || options.parts || !options.text.empty())
        fail(ErrorCode::wrong_use,
             "bench: --prompt goes with none of --scores, --instrument, --parts, --text");
    BenchedModel benched = benched_model(options);
    const std::vector<std::string> specs = specs_of(options);
    std::vector<std::vector<double>> ms(specs.size());
    std::optional<Progress> progress(std::in_place, "bench", options.rounds * static_cast<int>(specs.size()));
    for (int round = 0; round < options.rounds; ++round)
        for (std::size_t i = 0; i < specs.size(); ++i) {
            std::deque<Contender> once;  // its caches go before the next one's come
            add_contender(once, benched, contender_setup(specs[i], options.batch, options.context, 1));
            ms[i].push_back(once.front().prompt_ms);
            progress->update(round * static_cast<int>(specs.size()) + static_cast<int>(i) + 1);
        }
    progress.reset();
    nlohmann::json json = {{"model", benched.model->path().string()},
                           {"backend", benched.backend->name()},
                           {"context", options.context},
                           {"batch", options.batch},
                           {"lanes", nlohmann::json::array()}};
    if (!options.json)
        print_out("{}, {}\ncontext {}, batch {}, medians of {} rounds\n{:<44} {:>10} {:>10} {:>14}\n",
                  benched.model->path().string(), benched.backend_text, options.context, options.batch,
                  options.rounds, "lane", "ms/prompt", "tokens/s", "time x first");
    for (std::size_t i = 0; i < specs.size(); ++i) {
        const double middle = median(ms[i]), over_first = middle / median(ms[0]);
        const double tokens_per_s = 1e3 * options.context / middle;  // the lanes read one prompt
        json["lanes"].push_back({{"spec", specs[i]},
                                 {"ms_per_prompt", middle},
                                 {"tokens_per_s", tokens_per_s},
                                 {"time_over_first", over_first}});
        if (!options.json)
            print_out("{:<44} {:>10.1f} {:>10.1f} {:>14.3f}\n", specs[i], middle, tokens_per_s, over_first);
    }
    if (options.json) print_out("{}\n", json.dump(2));
}

}  // namespace keyhole
