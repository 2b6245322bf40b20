#include "engine/eval/two_at_a_time.h"

#include "engine/base/index.h"
#include "engine/base/threads.h"
#include "engine/device/make_backend.h"

#include <future>

namespace keyhole {

TwoAtATime::TwoAtATime(std::shared_ptr<const Model> model, Backend& backend, int n_threads)
    : model_(std::move(model)), whole_(backend) {
    const int n = ThreadPool(n_threads).n_threads();
    if (n < 2 || !whole_.name().starts_with("cpu,")) return;
    for (const int half : {n / 2, n - n / 2})
        halves_.push_back(make_backend(model_, {BackendChoice::cpu, half, 0}, nullptr));
}

void TwoAtATime::hold(std::span<const LaneSpec> lanes) {
    held_ = hold_models(model_, whole_, lanes);
    for (const auto& half : halves_)
        for (auto& cache : hold_models(model_, *half, lanes)) held_.push_back(std::move(cache));
}

void TwoAtATime::ask(const QuestionSet& set, std::span<const Asked> asked,
                     const std::function<void(const Asked&, const std::vector<Outcome>&)>& each) {
    const auto answer = [&](const Asked& one, Backend& backend, const Question& question) {
        return keyhole::ask(model_, backend, one.lanes, question);
    };
    while (asked.size() > 1 && !halves_.empty()) {
        const Question first = set.make(asked[0].question), second = set.make(asked[1].question);
        auto beside = std::async(std::launch::async, [&] { return answer(asked[1], *halves_[1], second); });
        const std::vector<Outcome> outcomes = answer(asked[0], *halves_[0], first);
        const std::vector<Outcome> others = beside.get();
        each(asked[0], outcomes);
        each(asked[1], others);
        asked = asked.subspan(2);
    }
    for (const Asked& one : asked) each(one, answer(one, whole_, set.make(one.question)));
}

}  // namespace keyhole
