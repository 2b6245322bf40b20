#include "engine/eval/drawn_parts.h"

#include "engine/base/counted.h"
#include "engine/base/error.h"

#include <set>

namespace keyhole {

void check_room(int room) {
    if (room < 0)
        fail(ErrorCode::wrong_use,
             "a question does not fit into the context; make the context longer by {} or more",
             counted(-room, "token"));
}

Narrative draw_narrative(Draw& draw, const TaskMaterial& material, int room) {
    check_room(room);
    const std::vector<std::string>& all = *material.sentences;
    if (all.empty()) fail(ErrorCode::wrong_use, "the narrative has no sentences; give another text");
    Narrative found;
    const std::size_t start = draw.below(static_cast<std::uint32_t>(all.size()));
    while (true) {
        if (found.sentences.size() == all.size())
            fail(ErrorCode::wrong_use,
                 "the narrative of {} sentences does not fill the context; give a longer text", all.size());
        const std::string& sentence = all[(start + found.sentences.size()) % all.size()];
        const int n = material.count_tokens(sentence);
        if (found.edges.back() + n > room) return found;
        found.sentences.push_back(&sentence);
        found.edges.push_back(found.edges.back() + n);
    }
}

std::vector<std::string> draw_words(Draw& draw, const TaskMaterial& material, int n) {
    if (material.vocabulary == nullptr || std::ssize(*material.vocabulary) < n)
        fail(ErrorCode::wrong_use, "the narrative has too few different words; give a longer text");
    const std::vector<std::string>& all = *material.vocabulary;
    std::set<std::uint32_t> taken;
    std::vector<std::string> words;
    while (static_cast<int>(words.size()) < n) {
        const std::uint32_t at = draw.below(static_cast<std::uint32_t>(all.size()));
        if (taken.insert(at).second) words.push_back(all[at]);
    }
    return words;
}

}  // namespace keyhole
