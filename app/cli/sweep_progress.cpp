#include "app/cli/sweep_progress.h"

#include <fmt/format.h>

namespace keyhole {

SweepProgress::SweepProgress(std::string command, std::filesystem::path answers)
    : answers_(std::move(answers)), progress_(std::move(command), 0), kept_("no question was answered yet") {}

void SweepProgress::begin_model(const SweepNeed& need, std::size_t n_later) {
    n_kept_ += need.n_answers - need.n_missing;
    n_before_ += need.n_answers;
    n_all_ = n_before_ + static_cast<std::int64_t>(n_later) * need.n_answers;
    progress_.set_total(done_ + need.missing_work + static_cast<double>(n_later) * need.work);
    say();
}

void SweepProgress::add(std::int64_t n_answers, double work) {
    n_kept_ += n_answers;
    done_ += work;
    progress_.update(done_);
    say();
}

void SweepProgress::say() {
    kept_.set(fmt::format("{} of {} answers are kept in {}; the same command goes on", n_kept_, n_all_,
                          answers_.string()));
}

}  // namespace keyhole
