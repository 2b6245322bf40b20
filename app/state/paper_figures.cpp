#include "app/state/paper_figures.h"

#include "app/base/assets.h"
#include "engine/base/error.h"
#include "engine/base/json_text.h"
#include "engine/base/model_name.h"

#include <algorithm>
#include <sstream>
#include <system_error>

namespace keyhole {

namespace fs = std::filesystem;

namespace {

/// Returns the name of a model's folder: the last part of its path, without the ending of a GGUF file.
std::string folder_name(std::string_view model) {
    if (model.empty()) return "several-models";
    const fs::path name = model_name(model);
    return (name.extension() == ".gguf" ? name.stem() : name).string();
}

std::vector<MadeFigure> made_in(const fs::path& folder) {
    std::vector<MadeFigure> made;
    std::error_code error;
    for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
        try {
            made.push_back(
                {entry->path().filename().string(), entry->path(), read_figure_record(entry->path())});
        } catch (const Error&) {
            continue;  // not finished, or not ours
        }
    }
    std::ranges::sort(made, {}, &MadeFigure::model);
    return made;
}

}  // namespace

std::vector<std::string> words_of(const PaperCard& card, std::string_view model, const fs::path& out) {
    std::vector<std::string> words;
    std::istringstream in(card.command);
    std::string word;
    in >> word;  // the program
    while (in >> word) {
        if (word == "OUT")
            word = out.string();
        else if (word.starts_with("assets/"))
            word = (find_assets() / word.substr(std::string_view("assets/").size())).string();
        words.push_back(word);
    }
    if (!model.empty()) {
        words.emplace_back("--model");
        words.emplace_back(model);
    }
    return words;
}

void PaperFigures::list_made() {
    made_.clear();
    for (const PaperCard& card : cards)
        made_.push_back(folder.empty() ? std::vector<MadeFigure>{} : made_in(folder / card.name));
}

const std::vector<MadeFigure>& PaperFigures::made(std::size_t card) const {
    static const std::vector<MadeFigure> none;
    return card < made_.size() ? made_[card] : none;
}

void PaperFigures::make(std::string_view name, std::string_view model, std::function<void()> wake) {
    const auto card = std::ranges::find(cards, name, &PaperCard::name);
    if (card == cards.end())
        fail(ErrorCode::wrong_use, "there is no figure '{}'; the page Papers lists them", shown_text(name));
    if (!card->makeable)
        fail(ErrorCode::wrong_use, "{} is made by another command: {}", card->name, card->command);
    if (running()) fail(ErrorCode::wrong_use, "{} is being made; wait for it or cancel it", wanted_);
    if (folder.empty()) fail(ErrorCode::io, "no folder for figures: set HOME or XDG_DATA_HOME");
    if (card->has_models()) model = {};
    wanted_ = card->name;
    wanted_model_ = folder_name(model);
    std::vector<std::string> command = words_of(*card, model, folder / wanted_ / wanted_model_);
    command.insert(command.begin(), program.string());
    job_.begin(std::move(command), wanted_, std::move(wake));
}

bool PaperFigures::refresh() {
    const ChildJob::State state = job_.refresh();
    if (state == ChildJob::State::ended) list_made();
    return state != ChildJob::State::idle;
}

}  // namespace keyhole
